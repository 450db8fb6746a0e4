// SPDX-License-Identifier: Apache-2.0
// Every record of compressed_allreduce.json, with as many ranks as it says.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "espalier/comm/run_ranks.hpp"
#include "espalier/parallel/compress/compressed_all_reduce.hpp"
#include "tests/oracle/check.hpp"
#include "tests/support/oracle_tensors.hpp"

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
  CompressedAllReduce compressed(world.group(), in["length"], dtype, {.padded_elems = in["padded"], .padding_in_scale = true});
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

Json all_ranks(const Json& record, Backend backend) {
  const Json& in = record["in"];
  std::vector<Json> ranks(in["ranks"].get<std::size_t>());
  run_ranks(in["ranks"], [&](World& world) { ranks[static_cast<std::size_t>(world.rank())] = one_rank(world, in); },
            {.backend = backend, .timeout = std::chrono::milliseconds(20'000)});
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

void check_every_record(Backend backend) {
  std::ifstream file(ESPALIER_TEST_DATA "/oracles/compressed_allreduce.json");
  const Json data = Json::parse(file);
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

}  // namespace
}  // namespace espalier
