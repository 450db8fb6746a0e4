// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/compressed_rounds.hpp"

#include <ATen/Functions.h>

#include <chrono>
#include <stdexcept>

#include "espalier/comm/run_ranks.hpp"
#include "espalier/parallel/compress/compressed_all_reduce.hpp"
#include "tests/support/oracle_tensors.hpp"

namespace espalier::oracle {
namespace {

using testing_support::oracle_tensor;

template <class T>
Json list_of(const at::Tensor& tensor) {
  const at::Tensor same = tensor.to(c10::CppTypeToScalarType<T>::value).contiguous();
  return std::vector<T>(same.const_data_ptr<T>(), same.const_data_ptr<T>() + same.numel());
}

Json padded_lengths(const Json& record) {
  const std::int64_t ranks = record["in"]["ranks"], length = record["in"]["length"];
  const std::int64_t padded = deepspeed_compressed_length(length, ranks);
  return {{"multiple", deepspeed_compressed_length(1, ranks)},
          {"padded", padded},
          {"server_chunk", padded / ranks},
          {"smallest_legal", compressed_length(length, ranks)}};
}

}  // namespace

Json compressed_rounds(World& world, const Json& in) {
  const at::ScalarType dtype = in["dtype"] == "float64" ? at::kDouble : at::kFloat;
  CompressedAllReduce compressed(world.group(), in["length"], dtype,
                                 {.padded_elems = in["padded"], .padding_in_scale = true});
  Json rounds = Json::array();
  for (const Json& inputs : in["rounds"]) {
    at::Tensor tensor = oracle_tensor(inputs[static_cast<std::size_t>(world.rank())], dtype);
    compressed.mean_(tensor);
    const CompressedMessage& sent = compressed.last_message();
    rounds.push_back({{"worker_scale", sent.worker_scale},
                      {"packed", list_of<std::uint8_t>(sent.worker_bits)},
                      {"server_scale", sent.server_scale},
                      {"server_packed", list_of<std::uint8_t>(sent.server_bits)},
                      {"worker_error", list_of<double>(compressed.worker_error())},
                      {"server_error", list_of<double>(compressed.server_error())},
                      {"result", list_of<double>(tensor)}});
  }
  return rounds;
}

std::vector<Json> compressed_rounds_by_rank(const Json& in, Backend backend) {
  std::vector<Json> ranks(in["ranks"].get<std::size_t>());
  run_ranks(in["ranks"],
            [&](World& world) { ranks[static_cast<std::size_t>(world.rank())] = compressed_rounds(world, in); },
            {.backend = backend, .timeout = std::chrono::milliseconds(20'000)});
  return ranks;
}

Json compressed_rounds_joined(const Json& record, Backend backend) {
  const std::vector<Json> ranks = compressed_rounds_by_rank(record["in"], backend);
  Json rounds = Json::array();
  for (std::size_t round = 0; round < ranks[0].size(); ++round) {
    Json joined;
    for (const auto& [key, value] : ranks[0][round].items()) {
      if (key == "result") continue;
      for (const Json& rank : ranks) joined[key].push_back(rank[round][key]);
    }
    joined["result"] = ranks[0][round]["result"];
    for (const Json& rank : ranks) {
      if (rank[round]["result"] != joined["result"]) throw std::runtime_error("two ranks end with different results");
    }
    rounds.push_back(joined);
  }
  return {{"rounds", rounds}};
}

Checkers compressed_allreduce_checkers(Backend backend) {
  return {{"compressed_allreduce",
           {.answer = [backend](const Json& record) { return compressed_rounds_joined(record, backend); }}},
          {"onebit_padded_length", {.answer = padded_lengths}}};
}

}  // namespace espalier::oracle
