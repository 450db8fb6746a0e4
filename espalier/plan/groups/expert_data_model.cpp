// SPDX-License-Identifier: Apache-2.0
// The grid is (pipe, expert_data, expert, expert_tensor), with the two middle axes exchanged in the
// D+E order.
#include "espalier/plan/groups/expert_data_model.hpp"

#include "espalier/base/check.hpp"
#include "espalier/plan/layout/divisors.hpp"

namespace espalier {

GroupPlan expert_data_model_plan(const Layout& layout, const ExpertDataModelSpec& spec) {
  constexpr const char* kWhere = "expert_data_model";
  const RankSet stage = layout.group("stage", 0);
  const RankSet tensor = layout.group("tensor", 0);
  ESPALIER_CHECK_CONFIG(stage == RankSet::range(0, stage.size()) && tensor == RankSet::range(0, tensor.size()),
                        "{}: in the layout {} the first stage is {} and the first tensor group {}; expected blocks "
                        "of "
                        "neighbours: choose an order with pipe first and tensor last",
                        kWhere, layout.to_string(), stage.to_string(), tensor.to_string());
  const std::int64_t expert_tensor = spec.expert_tensor == 0 ? tensor.size() : spec.expert_tensor;
  check_divides(kWhere, "expert_tensor", expert_tensor, "the stage", stage.size());
  const std::int64_t lane = stage.size() / expert_tensor;
  check_divides(kWhere, "expert", spec.expert,
                fmt::format("a lane (stage {} / expert_tensor {}{})", stage.size(), expert_tensor,
                            spec.expert_tensor == 0 && expert_tensor > 1 ? ", as tensor, since it is not given" : ""),
                lane);

  const GridAxis replicas{"expert_data", lane / spec.expert};
  const GridAxis experts{"expert", spec.expert};
  const bool expert_first = spec.order == ExpertOrder::expert_first;
  const Grid grid{{"pipe", layout.size("pipe")},
                  expert_first ? replicas : experts,
                  expert_first ? experts : replicas,
                  {"expert_tensor", expert_tensor}};
  const std::string name = fmt::format("ep_size_{}", spec.expert);
  GroupPlan plan(layout.world_size());
  plan.add(name, grid.family({"expert"}, {"pipe", "expert_tensor", "expert_data"}));
  plan.add(name + ".data", grid.family({"expert_data"}, {"pipe", "expert_tensor", "expert"}));
  return plan;
}

}  // namespace espalier
