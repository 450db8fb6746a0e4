// SPDX-License-Identifier: Apache-2.0
// All ranks go through their groups in the same order, that of the plan, so a backend that has to
// connect a group's members one after another cannot meet itself waiting in a circle.
#include "espalier/comm/group_set.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/world_state.hpp"

namespace espalier {

struct GroupSet::State {
  World world;
  GroupPlan plan;
  std::vector<Group> groups;               // mine, in plan order
  std::vector<std::int64_t> indices;       // of these in the plan
  std::vector<std::size_t> communicators;  // positions in `groups` that opened one

  // Where the plan's group of this index, one of mine, is in `groups`.
  std::size_t position(std::int64_t index) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(indices, index) - indices.begin());
  }
};

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// "groups: data 2, model 4 over 8 ranks; 2 communicators of rank 0 besides the world's"
std::string summary(const GroupPlan& plan, std::size_t num_communicators) {
  std::vector<std::string> families;
  for (const std::string& family : plan.families()) families.push_back(fmt::format("{} {}", family, plan.size(family)));
  return fmt::format("groups: {} over {} rank{}; {} communicator{} of rank 0 besides the world's",
                     families.empty() ? "none" : fmt::format("{}", fmt::join(families, ", ")), plan.ranks().size(),
                     plan.ranks().size() == 1 ? "" : "s", num_communicators, num_communicators == 1 ? "" : "s");
}

}  // namespace

GroupSet::GroupSet(const World& world, const GroupPlan& plan) {
  agree(world.group(), "group plan", plan.describe());
  ESPALIER_CHECK_CONFIG(plan.ranks().last() < world.size(),
                        "group plan: it is for the ranks {}, but the world has {}; expected ranks below that",
                        plan.ranks().to_string(), world.size());
  State state{world, plan, {}, plan.groups_of(world.rank()), {}};
  for (const std::int64_t index : state.indices) {
    const PlannedGroup planned = plan.group(index);
    state.groups.push_back(world.make_group(planned.ranks, planned.name));
  }
  for (const std::int64_t index : plan.communicators_of(world.rank(), world.size()))
    state.communicators.push_back(state.position(index));
  if (world.rank() == 0) world.log().info(summary(plan, state.communicators.size()));
  detail::warn_of_host_crossings(world, plan);
  state_ = std::make_shared<const State>(std::move(state));
}

const World& GroupSet::world() const { return state_->world; }
const GroupPlan& GroupSet::plan() const { return state_->plan; }
std::span<const Group> GroupSet::groups() const { return state_->groups; }

std::int64_t GroupSet::num_communicators() const { return static_cast<std::int64_t>(state_->communicators.size()); }

bool GroupSet::has_own(std::string_view family) const { return plan().own(family, world().rank()).has_value(); }

const Group& GroupSet::own(std::string_view family) const {
  const std::optional<std::int64_t> index = plan().own(family, world().rank());
  ESPALIER_CHECK_CONFIG(index.has_value(), "group set: rank {} is in no group of the family '{}'; ask has_own() first",
                        world().rank(), family);
  return state_->groups[state_->position(*index)];
}

const Group& GroupSet::group(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const Group& group : state_->groups) {
    if (group.name() == name) return group;
    names.push_back(group.name());
  }
  throw ConfigError(fmt::format("group set: rank {} has no group '{}'; its groups are {}", world().rank(), name,
                                names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

void GroupSet::warm_up(std::chrono::milliseconds timeout) const {
  const auto deadline = steady_clock::now() + timeout;
  std::vector<Work> works;  // all posted before the first wait: groups connect at the same time
  for (const std::size_t i : state_->communicators) works.push_back(barrier(state_->groups[i]));
  std::vector<std::string> missing;
  std::string reason;
  for (std::size_t i = 0; i < works.size(); ++i) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    try {
      works[i].wait(std::max(left, milliseconds(1)));
    } catch (const CommError& error) {  // poisons the world, but what has arrived is still found
      const Group& group = state_->groups[state_->communicators[i]];
      missing.push_back(fmt::format("{} {}", group.name(), group.members().to_string()));
      if (reason.empty()) reason = error.what();
    }
  }
  if (missing.empty()) return;
  throw CommError(fmt::format("group set: {} of {} groups did not connect: {}; {}", missing.size(), works.size(),
                              fmt::join(missing, ", "), reason));
}

}  // namespace espalier
