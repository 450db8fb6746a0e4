// SPDX-License-Identifier: Apache-2.0
// Group plans in the form of the oracle files.
#pragma once

#include "espalier/plan/groups/group_plan.hpp"
#include "tests/oracle/check.hpp"

namespace espalier::oracle {

inline Json ranks_of(const RankSet& set) { return set.to_vector(); }

inline Json lists_of(const std::vector<RankSet>& sets) {
  Json lists = Json::array();
  for (const RankSet& set : sets) lists.push_back(ranks_of(set));
  return lists;
}

// Every group's ranks in order of creation.
inline Json creation_of(const GroupPlan& plan) {
  Json lists = Json::array();
  for (std::int64_t i = 0; i < plan.size(); ++i) lists.push_back(ranks_of(plan.group(i).ranks));
  return lists;
}

// By rank: the index of its own group of a family, or null.
inline Json own_of(const GroupPlan& plan, std::string_view family) {
  Json own = Json::array();
  for (std::int64_t rank = 0; rank < plan.world_size(); ++rank) {
    const auto index = plan.own(family, rank);
    own.push_back(index ? Json(*index) : Json());
  }
  return own;
}

}  // namespace espalier::oracle
