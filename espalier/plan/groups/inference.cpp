// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/groups/inference.hpp"

#include "espalier/base/check.hpp"
#include "espalier/plan/layout/divisors.hpp"

namespace espalier {

GroupPlan inference_expert_plan(std::int64_t world_size, std::span<const std::int64_t> expert_sizes) {
  GroupPlan plan(world_size);
  for (std::int64_t size : expert_sizes) {
    check_divides("inference", "expert-parallel size", size, "the world", world_size);
    const Grid grid{{"block", world_size / size}, {"place", size}};
    const std::string name = fmt::format("ep_size_{}", size);
    GroupPlan one(world_size);
    one.add(name, grid.family({"place"}));
    if (world_size > size) one.add(name + ".model", grid.family({"block"}));
    plan.include(one);
  }
  return plan;
}

GroupPlan inference_model_plan(std::int64_t world_size, std::span<const std::int64_t> tensor_sizes) {
  GroupPlan plan(world_size);
  for (std::int64_t size : tensor_sizes) {
    ESPALIER_CHECK_CONFIG(size >= 1 && size <= world_size,
                          "inference: tensor-parallel size {} in a world of {}; expected 1 to {} "
                          "(if more ranks should be "
                          "there, was the program started by a launcher, as by espalier run?)",
                          size, world_size, world_size);
    GroupPlan one(world_size);
    one.add(fmt::format("tp_size_{}", size), RankSet::range(0, size));
    plan.include(one);
  }
  return plan;
}

}  // namespace espalier
