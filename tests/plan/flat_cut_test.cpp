// SPDX-License-Identifier: Apache-2.0
// Where it cuts and pads is in the oracle norms.json.
#include "espalier/plan/partition/flat_cut.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "espalier/base/error.hpp"

namespace espalier {
namespace {

TEST(FlatCut, RefusesAnAlignmentThatDoesNotDivideOverTheRanks) {
  const std::vector<std::int64_t> sizes{8};
  EXPECT_THROW(FlatCut(sizes, 3, 4), ConfigError);
  EXPECT_THROW(FlatCut(sizes, 0, 4), ConfigError);
  EXPECT_THROW(FlatCut(std::vector<std::int64_t>{-1}, 1, 1), ConfigError);
}

}  // namespace
}  // namespace espalier
