// SPDX-License-Identifier: Apache-2.0
// Every record of compressed_allreduce.json, with as many ranks as it says.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "espalier/base/error.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/parallel/compress/compressed_all_reduce.hpp"
#include "tests/oracle/check.hpp"
#include "tests/support/oracle_tensors.hpp"
#include "tests/support/program.hpp"

namespace espalier {
namespace {

using oracle::Json;
using testing_support::oracle_tensor;

template <class T>
std::vector<T> to_list(const at::Tensor& tensor, at::ScalarType dtype) {
  const at::Tensor same = tensor.to(dtype).contiguous();
  return {same.const_data_ptr<T>(), same.const_data_ptr<T>() + same.numel()};
}

Json numbers_of(const at::Tensor& tensor) { return to_list<double>(tensor, at::kDouble); }
Json bytes_of(const at::Tensor& tensor) { return to_list<std::uint8_t>(tensor, at::kByte); }

Json one_rank(World& world, const Json& in) {
  const at::ScalarType dtype = in["dtype"] == "float64" ? at::kDouble : at::kFloat;
  CompressedAllReduce compressed(world.group(), in["length"], dtype,
                                 {.padded_elems = in["padded"], .padding_in_scale = true});
  Json rounds = Json::array();
  for (const Json& inputs : in["rounds"]) {
    at::Tensor tensor = oracle_tensor(inputs[static_cast<std::size_t>(world.rank())], dtype);
    compressed.mean_(tensor);
    const CompressedMessage& sent = compressed.last_message();
    rounds.push_back({{"worker_scale", sent.worker_scale},
                      {"packed", bytes_of(sent.worker_bits)},
                      {"server_scale", sent.server_scale},
                      {"server_packed", bytes_of(sent.server_bits)},
                      {"worker_error", numbers_of(compressed.worker_error())},
                      {"server_error", numbers_of(compressed.server_error())},
                      {"result", numbers_of(tensor)}});
  }
  return rounds;
}

std::vector<Json> by_rank(const Json& in, Backend backend) {
  std::vector<Json> ranks(in["ranks"].get<std::size_t>());
  run_ranks(in["ranks"], [&](World& world) { ranks[static_cast<std::size_t>(world.rank())] = one_rank(world, in); },
            {.backend = backend, .timeout = std::chrono::milliseconds(20'000)});
  return ranks;
}

Json all_ranks(const Json& record, Backend backend) {
  const std::vector<Json> ranks = by_rank(record["in"], backend);
  Json rounds = Json::array();
  for (std::size_t round = 0; round < ranks[0].size(); ++round) {
    Json joined;
    for (const auto& [key, value] : ranks[0][round].items()) {
      if (key == "result") continue;
      for (const Json& rank : ranks) joined[key].push_back(rank[round][key]);
    }
    joined["result"] = ranks[0][round]["result"];
    for (const Json& rank : ranks) EXPECT_EQ(rank[round]["result"], joined["result"]);
    rounds.push_back(joined);
  }
  return {{"rounds", rounds}};
}

Json lengths(const Json& record) {
  const std::int64_t ranks = record["in"]["ranks"], length = record["in"]["length"];
  const std::int64_t padded = deepspeed_compressed_length(length, ranks);
  return {{"multiple", deepspeed_compressed_length(1, ranks)},
          {"padded", padded},
          {"server_chunk", padded / ranks},
          {"smallest_legal", compressed_length(length, ranks)}};
}

Json all_records() {
  std::ifstream file(ESPALIER_TEST_DATA "/oracles/compressed_allreduce.json");
  return Json::parse(file);
}

void check_every_record(Backend backend) {
  const Json data = all_records();
  const oracle::Checkers checkers{
      {"compressed_allreduce", {.answer = [backend](const Json& record) { return all_ranks(record, backend); }}},
      {"onebit_padded_length", {.answer = lengths}}};
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

TEST(CompressOracle, HoldsOverHost) { check_every_record(Backend::host); }
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
      EXPECT_EQ(one_rank(world, in), by_rank(in, Backend::host)[static_cast<std::size_t>(world.rank())])
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
