// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "espalier/comm/group.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/plan/groups/group_plan.hpp"

namespace espalier {

// A group plan come alive on this rank: the groups of the plan that this rank is in. Equal sets
// share a communicator (that of the world included), so what their members call counts as one
// sequence; groups of one rank have none. A cheap handle; sets and groups may be dropped in any
// order, and the communicators wait in the world for the next who asks for these ranks.
class GroupSet {
 public:
  // Collective over the world: all ranks agree on the plan (one exchange, however many groups;
  // ConfigError on every rank, naming the first difference and the ranks), then each makes its own
  // groups in plan order. Rank 0 logs what was made, and where hosts are known which groups cross
  // them that need not. Blocks; CommError names the ranks that do not come.
  GroupSet(const World& world, const GroupPlan& plan);

  const World& world() const;
  const GroupPlan& plan() const;

  // My groups in plan order.
  std::span<const Group> groups() const;
  // How many communicators of this rank they take besides the world's.
  std::int64_t num_communicators() const;

  // My group of a family, the first if there are several. ConfigError if this rank takes no part in
  // the family; an unknown family lists those there are.
  const Group& own(std::string_view family) const;
  bool has_own(std::string_view family) const;
  // One of my groups by its name, "data[3]". ConfigError for others: an unknown name lists mine.
  const Group& group(std::string_view name) const;

  // Connects all groups now instead of at their first use. All ranks must call. Blocks; CommError
  // after `timeout` names every group of this rank that did not connect.
  void warm_up(std::chrono::milliseconds timeout) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace espalier
