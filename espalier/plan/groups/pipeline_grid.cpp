// SPDX-License-Identifier: Apache-2.0
// After DeepSpeed's runtime.pipe.topology.PipelineParallelGrid, in its order of creation.
#include "espalier/plan/groups/pipeline_grid.hpp"

#include <algorithm>

#include "espalier/base/check.hpp"

namespace espalier {

PipelineGrid::PipelineGrid(const ProcessTopology& topology, std::optional<RankSet> ranks)
    : topology_(topology), ranks_(ranks ? *ranks : topology.grid().ranks()) {
  const Grid& grid = topology_.grid();
  ESPALIER_CHECK_CONFIG(grid.has("pipe") && grid.has("data"),
                        "pipeline grid: the topology {} lacks a pipe or a data axis; expected both", grid.to_string());
  ESPALIER_CHECK_CONFIG(ranks_.size() == grid.size(),
                        "pipeline grid: {} has {} ranks, but there are {}; expected sizes that multiply to that",
                        grid.to_string(), grid.size(), ranks_.size());
}

std::int64_t PipelineGrid::part(std::int64_t rank) const {
  const auto part = ranks_.index_of(rank);
  ESPALIER_CHECK_CONFIG(part.has_value(), "pipeline grid: rank {} is not one of {}", rank, ranks_.to_string());
  return *part;
}

std::int64_t PipelineGrid::stage(std::int64_t rank) const { return topology_.grid().coordinate("pipe", part(rank)); }

std::int64_t PipelineGrid::data_id(std::int64_t rank) const { return topology_.grid().coordinate("data", part(rank)); }

std::int64_t PipelineGrid::stage_to_global(std::int64_t rank, std::int64_t stage,
                                           std::span<const AxisCoordinate> replaced) const {
  const Grid& grid = topology_.grid();
  std::vector<std::int64_t> coordinates = grid.coordinates(part(rank));
  coordinates[grid.index("pipe")] = stage;
  for (const AxisCoordinate& c : replaced) coordinates[grid.index(c.axis)] = c.coordinate;
  return ranks_.member(grid.rank(coordinates));
}

std::int64_t PipelineGrid::next_stage_rank(std::int64_t rank) const {
  return stage_to_global(rank, (stage(rank) + 1) % num_stages());
}

GroupPlan PipelineGrid::plan() const {
  const Grid& grid = topology_.grid();
  std::vector<Varying> all_but_data;
  for (const GridAxis& axis : grid.axes()) {
    if (axis.name != "data") all_but_data.emplace_back(axis.name);
  }
  GroupPlan plan(grid.size());
  plan.add("ds_model", grid.family(all_but_data));
  plan.add("data", grid.family({"data"}));
  plan.add("pipe", grid.family({"pipe"}));
  plan.add("slice", grid.has("model") ? grid.family({"model"}) : grid.family({}));
  return plan.on(ranks_);
}

GroupPlan PipelineGrid::pair_plan() const {
  const std::int64_t stages = num_stages();
  ESPALIER_CHECK_CONFIG(stages > 1,
                        "pipeline grid: {} has one stage, which has no neighbours; expected pipe of 2 at least",
                        topology_.grid().to_string());
  GroupPlan plan(topology_.world_size());
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    const std::int64_t next = (stage + 1) % stages;
    plan.add(fmt::format("stages_{}_{}", stage, next),
             topology_.grid().family({{"pipe", {std::min(stage, next), std::max(stage, next)}}}));
  }
  return plan.on(ranks_);
}

}  // namespace espalier
