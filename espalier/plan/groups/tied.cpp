// SPDX-License-Identifier: Apache-2.0
// After DeepSpeed's PipelineModule._index_tied_modules, computed for all coordinates instead of
// one's own, so that topologies with further axes agree too. A tied group is a fiber over listed
// pipe coordinates.
#include "espalier/plan/groups/tied.hpp"

#include <algorithm>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

void check_cuts(std::span<const std::int64_t> cuts, std::int64_t stages, std::int64_t num_layers) {
  ESPALIER_CHECK_CONFIG(static_cast<std::int64_t>(cuts.size()) == stages + 1,
                        "tied layers: {} cuts for {} stages; expected one more than stages", cuts.size(), stages);
  ESPALIER_CHECK_CONFIG(std::is_sorted(cuts.begin(), cuts.end()) && cuts.front() == 0 && cuts.back() == num_layers,
                        "tied layers: the cuts [{}] do not run from 0 to the {} layers in ascending order",
                        fmt::join(cuts, ","), num_layers);
}

// All axes but pipe: data, model, then the others in declared order.
std::vector<std::string_view> held_axes(const Grid& grid) {
  std::vector<std::string_view> held;
  for (std::string_view axis : {"data", "model"}) {
    if (grid.has(axis)) held.push_back(axis);
  }
  for (const GridAxis& axis : grid.axes()) {
    if (axis.name != "pipe" && axis.name != "data" && axis.name != "model") held.push_back(axis.name);
  }
  return held;
}

}  // namespace

std::optional<std::int64_t> TiedPlan::owner(std::string_view key, std::int64_t rank) const {
  const auto ranks = groups_.own_ranks(key, rank);
  return ranks ? std::optional(ranks->first()) : std::nullopt;
}

bool TiedPlan::is_replica(std::string_view key, std::int64_t rank) const {
  const auto first = owner(key, rank);
  return first && *first != rank;
}

TiedPlan tied_plan(const ProcessTopology& topology, std::span<const std::string> layer_keys,
                   std::span<const std::int64_t> cuts) {
  const Grid& grid = topology.grid();
  const std::int64_t stages = grid.size("pipe");
  check_cuts(cuts, stages, static_cast<std::int64_t>(layer_keys.size()));
  TiedPlan plan(grid.size());
  if (stages == 1) return plan;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    for (std::int64_t layer = cuts[stage]; layer < cuts[stage + 1]; ++layer) {
      if (layer_keys[layer].empty()) continue;
      auto key = std::find_if(plan.keys_.begin(), plan.keys_.end(),
                              [&](const TiedKey& known) { return known.key == layer_keys[layer]; });
      if (key == plan.keys_.end()) key = plan.keys_.insert(key, {layer_keys[layer], {}});
      if (key->stages.empty() || key->stages.back() != stage) key->stages.push_back(stage);
    }
  }
  const std::vector<std::string_view> held = held_axes(grid);
  for (const TiedKey& key : plan.keys_) {
    const Varying pipe("pipe", key.stages);
    plan.groups_.add(key.key, grid.family(std::span(&pipe, 1), held));
  }
  return plan;
}

}  // namespace espalier
