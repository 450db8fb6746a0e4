// SPDX-License-Identifier: Apache-2.0
// The twin of the backend mpi that a build without MPI has; here beside the real one, so that every test run sees it.
#include <gtest/gtest.h>

#include "espalier/comm/backends/mpi/mpi.hpp"
#include "tests/support/expect_error.hpp"

namespace espalier::detail {
namespace {

TEST(MpiTwin, SaysWhichOptionToSet) {
  const char* const remedy = "this build of Espalier is without MPI; configure it with -DESPALIER_WITH_MPI=ON";
  EXPECT_FALSE(has_mpi());
  EXPECT_CONFIG_ERROR(require_mpi(), remedy);
  EXPECT_CONFIG_ERROR(join_mpi(), remedy);
}

}  // namespace
}  // namespace espalier::detail
