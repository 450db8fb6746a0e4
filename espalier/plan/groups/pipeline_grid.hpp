// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "espalier/plan/groups/group_plan.hpp"
#include "espalier/plan/groups/topology.hpp"

namespace espalier {

// What a rank is in a pipeline, and the groups it needs, as DeepSpeed's PipelineParallelGrid gives
// them: any topology with the axes "pipe" and "data"; "model" is the tensor axis, if there is one;
// further axes are held.
//
// Ranks are those of the topology, or of any set of as many ranks.
class PipelineGrid {
 public:
  // ConfigError without those axes, or unless `ranks` (default: 0 .. world-1 of the topology) has
  // as many members.
  explicit PipelineGrid(const ProcessTopology& topology, std::optional<RankSet> ranks = std::nullopt);

  const ProcessTopology& topology() const { return topology_; }
  std::int64_t num_stages() const { return topology_.size("pipe"); }
  std::int64_t stage(std::int64_t rank) const;
  std::int64_t data_id(std::int64_t rank) const;
  bool is_first_stage(std::int64_t rank) const { return stage(rank) == 0; }
  bool is_last_stage(std::int64_t rank) const { return stage(rank) == num_stages() - 1; }

  // The rank that has `rank`'s coordinates on `stage`, with further ones replaced. ConfigError for
  // unknown axes and coordinates out of range.
  std::int64_t stage_to_global(std::int64_t rank, std::int64_t stage,
                               std::span<const AxisCoordinate> replaced = {}) const;
  // The same place on the next stage, the first after the last.
  std::int64_t next_stage_rank(std::int64_t rank) const;

  // The groups in order of creation:
  //   ds_model  all ranks of one data index (pipe x model x further axes): norms and overflow
  //   data, pipe, slice (along the model axis; groups of one rank without it)
  GroupPlan plan() const;
  // For point-to-point by broadcast: a family "stages_s_t" of pairs for each stage s and the next
  // one t, with wrap-around; with two stages both hold the same pairs. ConfigError for one stage.
  GroupPlan pair_plan() const;

 private:
  std::int64_t part(std::int64_t rank) const;  // of the topology

  ProcessTopology topology_;
  RankSet ranks_;
};

}  // namespace espalier
