// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "espalier/plan/groups/group_plan.hpp"

namespace espalier {

// DeepSpeed's _create_model_parallel: the families "data" (every model-th rank), then "model"
// (blocks of neighbours). ConfigError unless model divides the world; a size above the world is
// refused, not lowered.
GroupPlan model_data_plan(std::int64_t world_size, std::int64_t model);

}  // namespace espalier
