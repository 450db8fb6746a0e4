// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <string>
#include <string_view>

#include "espalier/plan/groups/group_plan.hpp"
#include "espalier/plan/layout/grid.hpp"

namespace espalier {

// What Megatron's RankGenerator is given. `order` names the axes joined by '-', the fastest first;
// axes of size 1 may be left out.
struct MegatronSpec {
  std::int64_t tp = 1;
  std::int64_t ep = 1;
  std::int64_t dp = 1;
  std::int64_t pp = 1;
  std::int64_t cp = 1;
  std::string order = "tp-cp-ep-dp-pp";
  std::int64_t rank_offset = 0;
};

// Megatron's grid and its families by token: "dp" is the groups along dp, "tp-pp" those along both.
class MegatronRanks {
 public:
  // ConfigError for sizes below 1, ep and cp above 1 together (they belong to two grids), an order
  // that leaves out an axis of size above 1 or has an unknown name.
  explicit MegatronRanks(const MegatronSpec& spec);

  const Grid& grid() const { return grid_; }
  // ConfigError for an empty token and unknown names.
  Family family(std::string_view token) const;

  // Who shares the embedding: "embedding" (first and last stage) and "position_embedding" (the
  // first stage).
  GroupPlan embedding_plan() const;

 private:
  Grid grid_;
};

struct EpFoldingSpec {
  std::int64_t pp = 1;
  std::int64_t tp = 1;
  std::int64_t ep = 1;
  std::int64_t etp = 1;
};

// Expert parallelism over all ranks of a stage, tensor lanes included, as in DeepSpeed's
// auto_ep_folding: the families "tp", "dp", "ep" and "edp". ConfigError, with the legal values,
// unless pp divides the world, and tp and ep a stage; and for etp above 1, which these tables have
// no groups for (a Layout with expert_tensor has).
GroupPlan ep_folding_plan(std::int64_t world_size, const EpFoldingSpec& spec);

}  // namespace espalier
