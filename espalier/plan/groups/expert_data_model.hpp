// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "espalier/plan/groups/expert_data.hpp"
#include "espalier/plan/groups/group_plan.hpp"
#include "espalier/plan/layout/layout.hpp"

namespace espalier {

struct ExpertDataModelSpec {
  std::int64_t expert = 1;
  ExpertOrder order = ExpertOrder::expert_first;
  std::int64_t expert_tensor = 0;  // 0: as the layout's tensor size
};

// DeepSpeed's _create_expert_data_and_model_parallel: experts that stay cut over tensor lanes, on a
// layout that the program has already (DeepSpeed's mpu). The families "ep_size_N" and then
// "ep_size_N.data", stage by stage, lane by lane. ConfigError unless expert x expert_tensor divides
// a stage of the layout, and the layout's stages are blocks of neighbours with the tensor ranks
// side by side.
GroupPlan expert_data_model_plan(const Layout& layout, const ExpertDataModelSpec& spec);

}  // namespace espalier
