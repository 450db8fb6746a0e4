// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/layout/grid.hpp"
#include "espalier/plan/layout/rank_set.hpp"

namespace espalier {

struct PlannedGroup {
  std::string name;  // "data[3]": the family and the position in it
  RankSet ranks;
};

// The groups that a program will use, in the order in which they are created: families of named
// rank sets over the ranks 0 .. world_size-1. A family may come in several pieces (one per stage,
// say), with other families in between. Families are kept as grids, so a plan is small whatever the
// world's size.
class GroupPlan {
 public:
  explicit GroupPlan(std::int64_t world_size);

  // Appends sets to a family. ConfigError if a rank lies outside the world.
  void add(std::string_view family, const Family& sets);
  // Appends one set to a family.
  void add(std::string_view family, const RankSet& set);
  // Appends the families of another plan of this world. A family that is here already, with the
  // same sets, stays as it is; ConfigError if the sets differ.
  void include(const GroupPlan& other);
  // This plan for the ranks of a set instead of 0 .. world_size-1: member i takes the part of rank
  // i.
  GroupPlan on(const RankSet& ranks) const;

  std::int64_t world_size() const { return world_size_; }
  std::int64_t size() const { return size_; }        // number of groups
  PlannedGroup group(std::int64_t index) const;      // in creation order; ConfigError unless 0 <= index < size
  std::vector<std::string> families() const;         // in order of first appearance
  std::int64_t size(std::string_view family) const;  // number of groups of a family

  // Which group is `rank`'s own in a family; nullopt if the rank takes no part in it. An unknown
  // family is a ConfigError that lists those there are.
  std::optional<std::int64_t> own(std::string_view family, std::int64_t rank) const;
  // The ranks of own(); nullopt likewise.
  std::optional<RankSet> own_ranks(std::string_view family, std::int64_t rank) const;

  // All groups that `rank` is in, ascending.
  std::vector<std::int64_t> groups_of(std::int64_t rank) const;
  // Of these, the ones that need a communicator of their own in a world of `world_size` ranks: not
  // those of one rank, of all ranks, or of the same ranks as an earlier one.
  std::vector<std::int64_t> communicators_of(std::int64_t rank, std::int64_t world_size) const;

  // Who takes the parts: 0 .. world_size-1 unless on() has moved the plan.
  RankSet ranks() const { return ranks_.value_or(RankSet::range(0, world_size_)); }

  // One line per piece, equal exactly for equal plans: what ranks agree on before groups are
  // created.
  std::vector<std::string> describe() const;

 private:
  // Consecutive groups of one family.
  struct Piece {
    std::string family;
    Family sets;
    std::int64_t first = 0;  // index of its first group in the plan
    std::int64_t first_in_family = 0;
    std::string line;  // of describe()
  };

  void append(std::string_view family, const Family& sets);
  bool has(std::string_view family) const;
  void check_family(std::string_view family) const;
  RankSet translated(const RankSet& set) const;

  std::int64_t world_size_;
  std::int64_t size_ = 0;
  std::vector<Piece> pieces_;
  std::optional<RankSet> ranks_;  // set by on(): who takes the parts 0 .. world_size-1
};

}  // namespace espalier
