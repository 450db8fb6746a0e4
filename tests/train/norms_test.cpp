// SPDX-License-Identifier: Apache-2.0
// Global norms of parameters placed in many ways, each rank holding its own part, against the oracle.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>

#include "espalier/comm/collectives.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/sharding/placement.hpp"
#include "espalier/train/norm.hpp"
#include "tests/support/oracle_records.hpp"
#include "tests/support/oracle_tensors.hpp"

namespace espalier {
namespace {

using Json = nlohmann::json;
using testing_support::oracle_number;
using testing_support::oracle_records;
using testing_support::oracle_tensor;

Placement placement_of(const Json& by_axis) {
  Placement placement;
  for (const auto& [axis, kind] : by_axis.items()) {
    if (axis == "pipe") {
      placement.stages = kind.is_array() ? kind.get<std::vector<std::int64_t>>() : std::vector<std::int64_t>{0};
    } else if (kind == "shard") {
      placement.sharded_axes.push_back(axis);
    }
  }
  return placement;
}

// The norm as every rank gets it.
std::vector<double> norms_on_ranks(const Json& in) {
  const std::vector<std::string> axes = in["axes"];
  const std::vector<std::int64_t> dims = in["dims"];
  std::int64_t size = 1;
  for (const std::int64_t dim : dims) size *= dim;
  const double p = oracle_number(in["p"]);
  std::vector<double> norms(size);
  run_ranks(size, [&](World& world) {
    std::vector<AxisCoordinate> coordinates(axes.size());
    std::int64_t rest = world.rank();
    for (std::size_t i = axes.size(); i-- > 0; rest /= dims[i]) coordinates[i] = {axes[i], rest % dims[i]};
    double power = 0.0;
    for (const Json& parameter : in["params"]) {
      const Json& local = parameter["local"][world.rank()];
      if (local.is_null()) continue;
      const double mine = norm_power(oracle_tensor(local), placement_of(parameter["placement"]), coordinates, p);
      power = std::isinf(p) ? std::max(power, mine) : power + mine;
    }
    at::Tensor total = at::full({1}, power, at::kDouble);
    all_reduce_(total, world.group(), std::isinf(p) ? ReduceOp::max : ReduceOp::sum).wait();
    norms[world.rank()] = norm_from_power(total.item<double>(), p);
  });
  return norms;
}

TEST(GlobalNorm, CountsEveryDistinctElementOnceAsTheOracleSays) {
  const auto records = oracle_records("norms.json", "clip_global_norm");
  ASSERT_EQ(records.size(), 40u);
  for (const Json& record : records) {
    const Json& out = record["out"];
    for (const double norm : norms_on_ranks(record["in"])) {
      EXPECT_EQ(std::isfinite(norm), out["finite"].get<bool>()) << record["in"];
      if (!out["finite"]) continue;
      const double expected = out["norm"];
      EXPECT_NEAR(norm, expected, 1e-10 * expected) << record["in"];
      EXPECT_NEAR(clip_scale(norm, record["in"]["max_norm"]), out["scale"].get<double>(), 1e-10) << record["in"];
    }
  }
}

TEST(GlobalNorm, CountsATiedGradientOnce) {
  for (const Json& record : oracle_records("norms.json", "tied_norm")) {
    const Json& in = record["in"];
    const std::int64_t stages = in["stages"];
    std::vector<std::int64_t> all(stages);
    for (std::int64_t s = 0; s < stages; ++s) all[s] = s;
    const Placement tied{.stages = all};
    double power = 0.0;
    for (const std::int64_t stage : all) {
      const AxisCoordinate rank[] = {{"pipe", stage}};
      power += norm_power(oracle_tensor(in["grad_on_every_stage"]), tied, rank, 2.0);
    }
    const double expected = record["out"]["norm"];
    EXPECT_NEAR(norm_from_power(power, 2.0), expected, 1e-10 * expected);
  }
}

TEST(GlobalNorm, SumsExpertsOverTheirOwners) {
  for (const Json& record : oracle_records("norms.json", "expert_norm")) {
    const Placement expert{.sharded_axes = {"expert"}};
    double power = 0.0;
    std::int64_t index = 0;
    for (const Json& local : record["in"]["local_expert_grads"]) {
      const AxisCoordinate rank[] = {{"expert", index++}};
      power += norm_power(oracle_tensor(local), expert, rank, 2.0);
    }
    const double expected = record["out"]["norm"];
    EXPECT_NEAR(norm_from_power(power, 2.0), expected, 1e-10 * expected);
  }
}

}  // namespace
}  // namespace espalier
