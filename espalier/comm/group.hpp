// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "espalier/plan/layout/rank_set.hpp"

namespace espalier {

namespace detail {
class Communicator;
struct GroupState;
}  // namespace detail

// What a group's backend does by itself. What it lacks, the collectives emulate.
struct Capabilities {
  bool point_to_point = true;       // send and recv
  bool uneven_all_gather = true;    // all_gather_v without padding
  bool int16_reductions = true;
  bool bfloat16_reductions = true;
  bool mean_reductions = true;      // ReduceOp::mean, as the sum rounded to the dtype and then divided
  bool buffered_sends = true;       // a posted send arrives whatever its sender does next
  bool names_dead_ranks = true;     // the death of a process is noticed and named at once
};

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
  std::int64_t world_rank(std::int64_t group_rank) const;                   // ConfigError if out of range
  std::optional<std::int64_t> group_rank(std::int64_t world_rank) const;    // nullopt: not a member
  const Capabilities& capabilities() const;

  // The same ranks under another name with a communication space of their own. All members must call, in the same
  // order. The same name and set again gives the same group; the same name for another set is a ConfigError.
  Group duplicate(std::string_view name) const;

  detail::GroupState& state() const { return *state_; }

 private:
  std::shared_ptr<detail::GroupState> state_;
};

}  // namespace espalier
