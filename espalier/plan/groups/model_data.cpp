// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/groups/model_data.hpp"

#include "espalier/plan/layout/divisors.hpp"

namespace espalier {

GroupPlan model_data_plan(std::int64_t world_size, std::int64_t model) {
  check_divides("model_data", "model", model, "the world", world_size);
  const Grid grid{{"data", world_size / model}, {"model", model}};
  GroupPlan plan(world_size);
  plan.add("data", grid.family({"data"}));
  plan.add("model", grid.family({"model"}));
  return plan;
}

}  // namespace espalier
