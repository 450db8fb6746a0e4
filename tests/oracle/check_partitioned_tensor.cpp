// SPDX-License-Identifier: Apache-2.0
// Each record by as many ranks as it has parts, as threads.
#include <ATen/ops/arange.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "espalier/comm/run_ranks.hpp"
#include "espalier/sharding/partitioned_tensor.hpp"
#include "tests/oracle/check.hpp"

namespace espalier::oracle {
namespace {

using Numbers = std::vector<std::int64_t>;

Numbers numbers_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.reshape({-1}).contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

// 0, 1, 2, ... in this shape.
at::Tensor iota(const Numbers& shape) {
  const std::int64_t elements = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  return at::arange(elements, at::kLong).reshape(shape);
}

Json to_meta(const Json& record) {
  const Json& in = record["in"];
  const Numbers shape = in["shape"];
  const std::size_t rank_position = shape.size() + 2;
  Numbers sizes(in["parts"].get<std::size_t>());
  Numbers meta_rank0;
  std::mutex mutex;
  run_ranks(in["parts"], [&](World& world) {
    const PartitionedTensor cut(iota(shape), world.group());
    Numbers meta = numbers_of(cut.to_meta());
    const std::lock_guard lock(mutex);
    sizes[static_cast<std::size_t>(world.rank())] = cut.local_size();
    if (meta.at(rank_position) != world.rank()) throw std::runtime_error("no rank at its place in the metadata");
    meta[rank_position] = 0;
    if (!meta_rank0.empty() && meta != meta_rank0) throw std::runtime_error("metadata differ in more than the rank");
    meta_rank0 = meta;
  });
  const bool even = std::ranges::count(sizes, sizes.front()) == std::ssize(sizes);
  return {{"meta_rank0", meta_rank0}, {"rank_position", rank_position}, {"sizes", sizes}, {"even", even}};
}

// What all members of `group` find in the gathered tensor, after a way through either form of metadata too.
void gather(const Numbers& shape, const Group& group, Json& answer, std::mutex& mutex) {
  const PartitionedTensor cut(iota(shape), group);
  const auto again = [&](const at::Tensor& meta) {
    return PartitionedTensor::from_meta(meta, cut.local_data(), group).full();
  };
  for (const at::Tensor& full : {cut.full(), again(cut.to_meta()), again(cut.to_versioned_meta())}) {
    const Json found{{"values", numbers_of(full)},
                     {"shape", full.sizes().vec()},
                     {"partition", Numbers(cut.partition().begin(), cut.partition().end())}};
    const std::lock_guard lock(mutex);
    if (answer.is_null()) answer = found;
    if (answer != found) throw std::runtime_error("two members find " + answer.dump() + " and " + found.dump());
  }
}

Json from_meta_full(const Json& record) {
  Json answer;
  std::mutex mutex;
  run_ranks(record["in"]["parts"], [&](World& world) { gather(record["in"]["shape"], world.group(), answer, mutex); });
  return answer;
}

Json full_on_subgroup(const Json& record) {
  const Json& in = record["in"];
  const Numbers ranks = in["ranks"];
  Json answer;
  std::mutex mutex;
  run_ranks(in["world"], [&](World& world) {
    if (!RankSet::of(ranks).contains(world.rank())) return;
    gather(in["shape"], world.make_group(RankSet::of(ranks), "some"), answer, mutex);
  });
  return answer;
}

// "iota": n is short for the values 0 .. n-1.
Json with_values(const Json& record) {
  Json expected = expected_of(record);
  if (expected.contains("iota")) expected["values"] = numbers_of(iota({expected["iota"].get<std::int64_t>()}));
  expected.erase("iota");
  expected["shape"] = record["in"]["shape"];
  return expected;
}

}  // namespace

Checkers partitioned_tensor_checkers() {
  return {
      {"to_meta", {.answer = to_meta}},
      {"from_meta_full", {.answer = from_meta_full, .expected = with_values}},
      {"full_on_subgroup", {.answer = full_on_subgroup, .expected = with_values}},
  };
}

}  // namespace espalier::oracle
