// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/group.hpp"

#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/world_state.hpp"

namespace espalier {

Group::Group(std::shared_ptr<detail::GroupState> state) : state_(std::move(state)) {}

const std::string& Group::name() const { return state_->name; }
std::int64_t Group::rank() const { return state_->rank; }
std::int64_t Group::size() const { return state_->size; }
const RankSet& Group::members() const { return state_->members; }
const Capabilities& Group::capabilities() const { return state_->capabilities; }

std::int64_t Group::world_rank(std::int64_t group_rank) const {
  ESPALIER_CHECK_CONFIG(group_rank >= 0 && group_rank < size(),
                        "group '{}': there is no group rank {}; the group has {} members, ranks 0 to {}", name(),
                        group_rank, size(), size() - 1);
  return state_->members.member(group_rank);
}

std::optional<std::int64_t> Group::group_rank(std::int64_t world_rank) const {
  return state_->members.index_of(world_rank);
}

Group Group::duplicate(std::string_view name) const {
  ESPALIER_CHECK_CONFIG(!name.empty(), "group '{}': a duplicate needs a name", this->name());
  return Group(state_->core->group(state_->core, state_->members, name, name));
}

std::chrono::milliseconds Group::timeout() const { return state_->timeout.value_or(state_->core->timeout); }

Group Group::with_timeout(std::chrono::milliseconds timeout) const {
  ESPALIER_CHECK_CONFIG(timeout.count() > 0, "group '{}': a timeout of {} ms; expected more than 0", name(),
                        timeout.count());
  auto state = std::make_shared<detail::GroupState>(*state_);
  state->timeout = timeout;
  return Group(std::move(state));
}

}  // namespace espalier
