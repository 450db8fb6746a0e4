// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/partition/flat_cut.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "espalier/base/error.hpp"
#include "tests/support/oracle_records.hpp"

namespace espalier {
namespace {

using Json = nlohmann::json;
using espalier::testing_support::oracle_records;

TEST(FlatCut, PadsAsTheOracleSays) {
  const auto records = oracle_records("norms.json", "flat_padding");
  ASSERT_EQ(records.size(), 17u);
  for (const Json& record : records) {
    const Json& in = record["in"];
    const Json& out = record["out"];
    const std::int64_t ranks = in["ranks"], numel = in["numel"];
    const FlatCut cut(std::vector<std::int64_t>{numel}, ranks, in["alignment"]);
    EXPECT_EQ(cut.total_elems(), out["total"]) << record;
    EXPECT_EQ(cut.per_rank_elems(), out["per_rank"]) << record;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(cut.padding_elems(rank), out["padding"].value(std::to_string(rank), 0)) << record << " rank " << rank;
    }
  }
}

TEST(FlatCut, FindsEveryPieceAsTheOracleSays) {
  const auto records = oracle_records("norms.json", "flat_fragments");
  ASSERT_EQ(records.size(), 13u);
  for (const Json& record : records) {
    const std::vector<std::int64_t> sizes = record["in"]["sizes"];
    const std::int64_t ranks = record["in"]["ranks"];
    const FlatCut cut(sizes, ranks, ranks);
    EXPECT_EQ(cut.per_rank_elems(), record["out"]["per_rank"]) << record;
    EXPECT_EQ(cut.padding_elems(ranks - 1), record["out"]["last_padding"]) << record;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::vector<FlatCut::Fragment> expected;
      for (const Json& piece : record["out"]["fragments"][i]) {
        expected.push_back({piece["rank"], piece["param_start"], piece["rank_start"], piece["length"]});
      }
      EXPECT_EQ(cut.fragments(static_cast<std::int64_t>(i)), expected) << record << " parameter " << i;
    }
  }
}

TEST(FlatCut, PadsCountsToAMultipleAsTheOracleSays) {
  const auto records = oracle_records("norms.json", "pad_items");
  ASSERT_EQ(records.size(), 7u);
  for (const Json& record : records) {
    const std::int64_t items = record["in"]["items"], ranks = record["in"]["ranks"];
    EXPECT_EQ(FlatCut(std::vector<std::int64_t>{items}, ranks, ranks).total_elems() - items, record["out"]["padding"])
        << record;
  }
}

TEST(FlatCut, RefusesAnAlignmentThatDoesNotDivideOverTheRanks) {
  const std::vector<std::int64_t> sizes{8};
  EXPECT_THROW(FlatCut(sizes, 3, 4), ConfigError);
  EXPECT_THROW(FlatCut(sizes, 0, 4), ConfigError);
  EXPECT_THROW(FlatCut(std::vector<std::int64_t>{-1}, 1, 1), ConfigError);
}

}  // namespace
}  // namespace espalier
