// SPDX-License-Identifier: Apache-2.0
// All are the grid (replica, shard), where MiCS cuts shard into (node, device).
#include "espalier/plan/groups/zero.hpp"

#include "espalier/base/check.hpp"
#include "espalier/plan/layout/divisors.hpp"

namespace espalier {
namespace {

GroupPlan blocks(std::string_view family, std::int64_t world_size, std::int64_t size) {
  check_divides(family, "size", size, "the world", world_size);
  const Grid grid{{"replica", world_size / size}, {"shard", size}};
  GroupPlan plan(world_size);
  plan.add(family, grid.family({"shard"}));
  return plan;
}

}  // namespace

GroupPlan parameter_parallel_plan(std::int64_t world_size, std::optional<std::int64_t> size) {
  return blocks("parameter_parallel", world_size, size.value_or(world_size));
}

GroupPlan secondary_shard_plan(std::int64_t world_size, std::int64_t size) {
  return blocks("secondary_shard", world_size, size);
}

GroupPlan local_global_plan(std::int64_t world_size, std::int64_t devices_per_node) {
  check_positive("local_global", "the world", world_size);
  check_positive("local_global", "devices per node", devices_per_node);
  const std::int64_t devices = world_size < devices_per_node ? world_size : devices_per_node;
  ESPALIER_CHECK_CONFIG(world_size % devices == 0,
                        "local_global: {} ranks fill {} nodes of {} devices and leave {} over; "
                        "expected whole nodes: start {} or {} ranks",
                        world_size, world_size / devices, devices, world_size % devices,
                        world_size - world_size % devices, world_size - world_size % devices + devices);
  const Grid grid{{"node", world_size / devices}, {"device", devices}};
  GroupPlan plan(world_size);
  plan.add("local", grid.family({"device"}));
  if (world_size > devices) plan.add("global", grid.family({"node"}));
  return plan;
}

GroupPlan mics_plan(std::int64_t world_size, const MicsSpec& spec) {
  check_divides("mics", "shard", spec.shard, "the world", world_size);
  check_positive("mics", "devices per node", spec.devices_per_node);
  const Grid grid{{"replica", world_size / spec.shard}, {"shard", spec.shard}};
  GroupPlan plan(world_size);
  plan.add("shard", grid.family({"shard"}));
  if (world_size > spec.shard) plan.add("replicate", grid.family({"replica"}));
  if (!spec.hierarchical) return plan;

  const std::int64_t nodes = spec.shard / spec.devices_per_node;
  ESPALIER_CHECK_CONFIG(nodes >= 2 && spec.shard % spec.devices_per_node == 0,
                        "mics: a shard group of {} is not two or more whole nodes of {} devices; "
                        "expected a multiple of {} from {}, or "
                        "groups that are not hierarchical",
                        spec.shard, spec.devices_per_node, spec.devices_per_node, 2 * spec.devices_per_node);
  const Grid by_node = grid.split("shard", {{"node", nodes}, {"device", spec.devices_per_node}});
  plan.add("intra", by_node.family({"device"}));
  plan.add("inter", by_node.family({"node"}));
  return plan;
}

}  // namespace espalier
