// SPDX-License-Identifier: Apache-2.0
// One stage is a grid of (expert_data, expert), the other way round in the D+E order, and tensor
// lanes fastest where they count. v0.16: all expert data groups of all stages, then all expert
// groups. v0.19 with a model size: expert groups and expert data groups stage by stage.
#include "espalier/plan/groups/expert_data.hpp"

#include "espalier/base/check.hpp"
#include "espalier/plan/layout/divisors.hpp"

namespace espalier {
namespace {

void check_variant(const ExpertDataSpec& spec) {
  ESPALIER_CHECK_CONFIG(spec.variant != ExpertDataVariant::seed || spec.pipe == 1,
                        "expert_data: pipe {} with the seed variant, which knows no stages; use v0_16 or v0_19",
                        spec.pipe);
  ESPALIER_CHECK_CONFIG(spec.variant == ExpertDataVariant::v0_19 || spec.model == 1,
                        "expert_data: model {} with a variant that knows no model size; use v0_19", spec.model);
  ESPALIER_CHECK_CONFIG(spec.model == 1 || spec.order == ExpertOrder::expert_first,
                        "expert_data: the data_first order cannot be combined with model {}; use "
                        "expert_first, or model 1",
                        spec.model);
}

// Expert groups, then expert data groups, of each stage in turn.
void add_by_stage(GroupPlan& plan, const ExpertDataSpec& spec, const std::string& name, std::int64_t stage_size) {
  const bool lanes = spec.lanes == ModelLanes::tensor;
  const std::int64_t tensor = lanes ? spec.model : 1;
  for (std::int64_t stage = 0; stage < spec.pipe; ++stage) {
    const Grid grid({{"expert_data", stage_size / (spec.expert * tensor)}, {"expert", spec.expert}, {"tensor", tensor}},
                    stage * stage_size);
    plan.add(name, grid.family({"expert"}, {"tensor", "expert_data"}));
    plan.add(name + ".data", grid.family({"expert_data", "tensor"}));
  }
}

}  // namespace

GroupPlan expert_data_plan(std::int64_t world_size, const ExpertDataSpec& spec) {
  constexpr const char* kWhere = "expert_data";
  check_positive(kWhere, "model", spec.model);
  check_divides(kWhere, "pipe", spec.pipe, "the world", world_size);
  check_variant(spec);
  const std::int64_t stage_size = world_size / spec.pipe;
  check_divides(kWhere, "model", spec.model, "the stage", stage_size);
  if (spec.model > 1 && spec.lanes == ModelLanes::tensor) {
    check_divides(kWhere, "expert", spec.expert, "the tensor lane", stage_size / spec.model);
  } else {
    check_divides(kWhere, "expert", spec.expert, "the stage", stage_size);
  }

  const std::string name = fmt::format("ep_size_{}", spec.expert);
  GroupPlan plan(world_size);
  if (spec.model > 1) {
    add_by_stage(plan, spec, name, stage_size);
    return plan;
  }
  const GridAxis replicas{"expert_data", stage_size / spec.expert};
  const GridAxis experts{"expert", spec.expert};
  const bool expert_first = spec.order == ExpertOrder::expert_first;
  const Grid grid{{"pipe", spec.pipe}, expert_first ? replicas : experts, expert_first ? experts : replicas};
  plan.add(name + ".data", grid.family({"expert_data"}));
  plan.add(name, grid.family({"expert"}));
  return plan;
}

}  // namespace espalier
