// SPDX-License-Identifier: Apache-2.0
// Every record of compressed_allreduce.json over Gloo and among processes, with as many ranks as it says; oracle_check
// does the same over host.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "espalier/base/error.hpp"
#include "tests/oracle/compressed_rounds.hpp"
#include "tests/support/program.hpp"

namespace espalier {
namespace {

using oracle::Json;

Json all_records() {
  std::ifstream file(ESPALIER_TEST_DATA "/oracles/compressed_allreduce.json");
  return Json::parse(file);
}

void check_every_record(Backend backend) {
  const Json data = all_records();
  const oracle::Checkers checkers = oracle::compressed_allreduce_checkers(backend);
  int passed = 0, refused = 0;
  for (const Json& record : data["records"]) {
    const oracle::Outcome outcome = oracle::check_record(record, checkers);
    passed += outcome.verdict == oracle::Verdict::passed;
    refused += outcome.verdict == oracle::Verdict::refused;
    EXPECT_TRUE(outcome.verdict == oracle::Verdict::passed || outcome.verdict == oracle::Verdict::refused)
        << record["in"]["ranks"] << " ranks, length " << record["in"]["length"] << ": " << outcome.text;
  }
  EXPECT_EQ(passed, 67);
  EXPECT_EQ(refused, 5);
}

TEST(CompressOracle, HoldsOverGloo) { check_every_record(Backend::gloo); }

// Starts itself as the processes of worlds of 1 to 5 ranks; there each rank computes every record of that size, and
// must get the bits of its twin among threads.
TEST(CompressOracle, HoldsAmongProcesses) {
  constexpr const char* kIsRank = "ESPALIER_TEST_IS_RANK";
  if (std::getenv(kIsRank) == nullptr) {
    for (const std::string backend : {"host", "gloo"}) {
      for (int size = 1; size <= 5; ++size) {
        testing_support::Program ranks(
            {ESPALIER_TEST_BIN "/espalier", "run", "-n", std::to_string(size), "--", ESPALIER_TEST_BIN "/test_ranks",
             "--gtest_filter=CompressOracle.HoldsAmongProcesses"},
            {{kIsRank, "1"}, {"ESPALIER_BACKEND", backend}});
        EXPECT_EQ(ranks.wait(std::chrono::milliseconds(120'000)), 0)
            << backend << ", " << size << " ranks: " << ranks.output() << ranks.error();
      }
    }
    return;
  }
  World world = World::from_environment();
  int records = 0;
  const Json data = all_records();
  for (const Json& record : data["records"]) {
    if (record["function"] != "compressed_allreduce" || record["in"]["ranks"] != world.size()) continue;
    ++records;
    const Json& in = record["in"];
    std::optional<std::string> refused;
    try {
      EXPECT_EQ(oracle::compressed_rounds(world, in),
                oracle::compressed_rounds_by_rank(in, Backend::host)[static_cast<std::size_t>(world.rank())])
          << in["length"];
    } catch (const ConfigError& error) {
      refused = error.what();
    }
    EXPECT_EQ(refused.has_value(), !record.contains("out")) << in["length"] << ": " << refused.value_or("not refused");
  }
  EXPECT_GT(records, 0);
}

}  // namespace
}  // namespace espalier
