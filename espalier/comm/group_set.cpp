// SPDX-License-Identifier: Apache-2.0
// All ranks go through their groups in the same order, that of the plan, so a backend that has to
// connect a group's members one after another cannot meet itself waiting in a circle.
#include "espalier/comm/group_set.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/collectives.hpp"

namespace espalier {

struct GroupSet::State {
  World world;
  GroupPlan plan;
  std::vector<Group> groups;               // mine, in plan order
  std::vector<std::int64_t> indices;       // of these in the plan
  std::vector<std::size_t> communicators;  // positions in `groups` that opened one
};

namespace {

using std::chrono::steady_clock;

// "groups: data 2, model 4 over 8 ranks; rank 0 is in 2 and opens 2 communicators"
std::string summary(const GroupPlan& plan, std::size_t num_mine, std::size_t num_opened) {
  std::vector<std::string> families;
  for (const std::string& family : plan.families())
    families.push_back(fmt::format("{} {}", family, plan.size(family)));
  return fmt::format("groups: {} over {} ranks; rank 0 is in {} and opens {} communicators",
                     families.empty() ? "none" : fmt::format("{}", fmt::join(families, ", ")),
                     plan.ranks().size(), num_mine, num_opened);
}

}  // namespace

GroupSet::GroupSet(const World& world, const GroupPlan& plan) {
  agree(world.group(), "group plan", plan.describe());
  ESPALIER_CHECK_CONFIG(
      plan.ranks().last() < world.size(),
      "group plan: it is for the ranks {}, but the world has {}; expected ranks below that",
      plan.ranks().to_string(), world.size());
  State state{world, plan, {}, plan.groups_of(world.rank()), {}};
  for (const std::int64_t index : state.indices) {
    const PlannedGroup planned = plan.group(index);
    state.groups.push_back(world.make_group(planned.ranks, planned.name));
  }
  for (const std::int64_t index : plan.communicators_of(world.rank(), world.size())) {
    const auto at = std::lower_bound(state.indices.begin(), state.indices.end(), index);
    state.communicators.push_back(static_cast<std::size_t>(at - state.indices.begin()));
  }
  if (world.rank() == 0)
    world.log().info(summary(plan, state.groups.size(), state.communicators.size()));
  state_ = std::make_shared<const State>(std::move(state));
}

const World& GroupSet::world() const { return state_->world; }
const GroupPlan& GroupSet::plan() const { return state_->plan; }
std::span<const Group> GroupSet::groups() const { return state_->groups; }

std::int64_t GroupSet::num_communicators() const {
  return static_cast<std::int64_t>(state_->communicators.size());
}

bool GroupSet::has_own(std::string_view family) const {
  return plan().own(family, world().rank()).has_value();
}

const Group& GroupSet::own(std::string_view family) const {
  const std::optional<std::int64_t> index = plan().own(family, world().rank());
  ESPALIER_CHECK_CONFIG(index.has_value(),
                        "group set: rank {} is in no group of the family '{}'; ask has_own() first",
                        world().rank(), family);
  const auto at = std::lower_bound(state_->indices.begin(), state_->indices.end(), *index);
  return state_->groups[static_cast<std::size_t>(at - state_->indices.begin())];
}

const Group& GroupSet::group(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const Group& group : state_->groups) {
    if (group.name() == name) return group;
    names.push_back(group.name());
  }
  throw ConfigError(fmt::format("group set: rank {} has no group '{}'; its groups are {}",
                                world().rank(), name,
                                names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

void GroupSet::warm_up(std::chrono::milliseconds timeout) const {
  const auto deadline = steady_clock::now() + timeout;
  struct Connecting {
    const Group* group;
    Work work;
    bool connected = false;
  };
  std::vector<Connecting> all;
  for (const std::size_t i : state_->communicators)
    all.push_back({&state_->groups[i], barrier(state_->groups[i])});
  std::string reason;
  try {
    for (std::size_t num_connected = 0; num_connected < all.size();) {
      for (Connecting& each : all) {
        if (each.connected || !each.work.done()) continue;
        each.connected = true;
        ++num_connected;
      }
      if (num_connected == all.size()) return;
      if (steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        continue;
      }
      // Says who is missing, and ends the world.
      for (Connecting& each : all) {
        if (!each.connected) each.work.wait(std::chrono::milliseconds(1));
      }
      return;
    }
  } catch (const CommError& error) {
    reason = error.what();
  }
  std::vector<std::string> missing;
  for (const Connecting& each : all) {
    if (!each.connected)
      missing.push_back(
          fmt::format("{} {}", each.group->name(), each.group->members().to_string()));
  }
  throw CommError(fmt::format("group set: {} of {} groups did not connect: {}; {}", missing.size(),
                              all.size(), fmt::join(missing, ", "), reason));
}

}  // namespace espalier
