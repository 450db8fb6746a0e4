// SPDX-License-Identifier: Apache-2.0
// A build without MPI says how to get one with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;

void expect_refused(std::map<std::string, std::string> settings) {
  settings["ESPALIER_BACKEND"] = "mpi";
  testing_support::Program program({ESPALIER_TEST_BIN "/world_probe"}, settings);
  EXPECT_EQ(program.wait(), 2) << program.output() << program.error();
  EXPECT_THAT(program.output(), HasSubstr("ConfigError: backend mpi: this build of Espalier is without MPI"));
  EXPECT_THAT(program.output(), HasSubstr("-DESPALIER_WITH_MPI=ON"));
}

TEST(WithoutMpi, SaysWhichOptionToSet) {
  expect_refused({{"OMPI_COMM_WORLD_RANK", "0"},
                  {"OMPI_COMM_WORLD_SIZE", "2"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                  {"PMIX_NAMESPACE", "a-job"}});
}

TEST(WithoutMpi, SaysItToAWorldOfOneToo) { expect_refused({}); }

}  // namespace
}  // namespace espalier
