// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <span>

#include "espalier/plan/groups/group_plan.hpp"

namespace espalier {

// DeepSpeed's inference _create_ep_parallel_group, for expert-parallel sizes (not numbers of
// experts): for each different size N in turn the family "ep_size_N" (blocks of neighbours) and, if
// there are several, "ep_size_N.model" (the same place in every block). ConfigError unless each
// size divides the world.
GroupPlan inference_expert_plan(std::int64_t world_size, std::span<const std::int64_t> expert_sizes);

// DeepSpeed's inference _create_model_parallel_group, for engines with these tensor-parallel sizes:
// for each different size N the family "tp_size_N" of one group, ranks 0 .. N-1. Later ranks take
// no part: own() gives nullopt. ConfigError if a size exceeds the world.
GroupPlan inference_model_plan(std::int64_t world_size, std::span<const std::int64_t> tensor_sizes);

}  // namespace espalier
