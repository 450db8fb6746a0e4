// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "espalier/plan/groups/group_plan.hpp"

namespace espalier {

// Who are neighbours: the ranks that hold different experts (DeepSpeed's E+D), or the replicas of
// one (D+E).
enum class ExpertOrder { expert_first, data_first };

// Which DeepSpeed's order of creation: of August 2022 (without stages), v0.16 (with stages), or
// v0.19 (with a model size, and then expert groups before expert data groups, stage by stage).
enum class ExpertDataVariant { seed, v0_16, v0_19 };

// How v0.19 takes a model size above 1 into account.
enum class ModelLanes {
  tensor,    // each expert group stays in one tensor lane; the replicas of an expert are sought in
             // all lanes
  sequence,  // the model ranks are ranks like others
  folded     // the same sets, out of DeepSpeed's folding tables
};

struct ExpertDataSpec {
  std::int64_t expert = 1;
  std::int64_t pipe = 1;
  ExpertOrder order = ExpertOrder::expert_first;
  ExpertDataVariant variant = ExpertDataVariant::v0_16;
  std::int64_t model = 1;  // v0_19 only
  ModelLanes lanes = ModelLanes::tensor;
};

// DeepSpeed's _create_expert_and_data_parallel: the families "ep_size_N" (expert parallel, N =
// expert) and "ep_size_N.data" (the replicas of an expert), none across stages. Plans for several
// sizes are put together with GroupPlan::include. ConfigError unless pipe divides the world, model
// the stage, and expert the stage (in tensor lanes: the ranks of a lane); for data_first with a
// model size above 1; for stages or a model size that a variant lacks.
GroupPlan expert_data_plan(std::int64_t world_size, const ExpertDataSpec& spec);

}  // namespace espalier
