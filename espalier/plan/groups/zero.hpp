// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <optional>

#include "espalier/plan/groups/group_plan.hpp"

namespace espalier {

// DeepSpeed's _initialize_parameter_parallel_groups: the family "parameter_parallel", blocks of
// `size` neighbours (default: the whole world). ConfigError unless size divides the world; 0 is
// refused, not read as "not given".
GroupPlan parameter_parallel_plan(std::int64_t world_size, std::optional<std::int64_t> size = std::nullopt);

// DeepSpeed's _create_zero_param_parallel_group (hpZ): the family "secondary_shard", blocks of
// `size` neighbours that hold a second copy of the parameters. ConfigError unless size divides the
// world; a larger one is refused, not lowered.
GroupPlan secondary_shard_plan(std::int64_t world_size, std::int64_t size);

// DeepSpeed's _get_local_all_to_all_group, for hierarchical collectives: "local" (the ranks of each
// node) and, with several nodes, "global" (the same device of every node). A world smaller than a
// node is one local group. ConfigError where a last node would be part filled.
GroupPlan local_global_plan(std::int64_t world_size, std::int64_t devices_per_node);

struct MicsSpec {
  std::int64_t shard = 1;  // ranks that hold one copy of the parameters
  std::int64_t devices_per_node = 1;
  bool hierarchical = false;
};

// DeepSpeed's create_mics_comm_groups: "shard" (blocks), "replicate" (the same place in every
// block, if there are several), and if hierarchical "intra" and "inter" (a shard group's ranks of
// one node, and of one device across its nodes). ConfigError unless shard divides the world; if
// hierarchical, unless a shard group is two or more whole nodes.
GroupPlan mics_plan(std::int64_t world_size, const MicsSpec& spec);

}  // namespace espalier
