// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "espalier/plan/launch/capabilities.hpp"
#include "espalier/plan/layout/rank_set.hpp"

namespace espalier {

namespace detail {
class Communicator;
struct GroupState;
}  // namespace detail

// A set of ranks that communicate: a cheap handle, equal for all copies. Only members hold one. A group of one never
// communicates. Ranks inside a group are 0 .. size-1 in ascending order of world ranks.
class Group {
 public:
  Group() = default;  // no group; valid() is false
  explicit Group(std::shared_ptr<detail::GroupState> state);

  bool valid() const { return state_ != nullptr; }
  const std::string& name() const;
  std::int64_t rank() const;  // of this process in the group
  std::int64_t size() const;
  const RankSet& members() const;
  std::int64_t world_rank(std::int64_t group_rank) const;                 // ConfigError if out of range
  std::optional<std::int64_t> group_rank(std::int64_t world_rank) const;  // nullopt: not a member
  const Capabilities& capabilities() const;

  // The same ranks under another name with a communication space of their own. All members must call, in the same
  // order. The same name and set again gives the same group; the same name for another set is a ConfigError.
  Group duplicate(std::string_view name) const;

  // The same group, whose waits without a deadline of their own end after `timeout` instead of the world's. Local;
  // communicates through the same space. ConfigError unless it is above 0.
  Group with_timeout(std::chrono::milliseconds timeout) const;
  std::chrono::milliseconds timeout() const;

  detail::GroupState& state() const { return *state_; }

 private:
  std::shared_ptr<detail::GroupState> state_;
};

}  // namespace espalier
