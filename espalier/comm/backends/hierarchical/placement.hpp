// SPDX-License-Identifier: Apache-2.0
// Private: how the members of a group lie on hosts, as one of them sees it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/plan/layout/rank_set.hpp"

namespace espalier::detail::hierarchical {

// A member's place is its number among the members on its host.
struct Placement {
  // `host_of_rank` numbers the hosts of all ranks of the world; `rank` is a member.
  Placement(const RankSet& members, std::span<const std::int64_t> host_of_rank, std::int64_t rank);

  std::int64_t num_hosts() const { return static_cast<std::int64_t>(hosts.size()); }
  std::int64_t place() const;
  // The members that this rank reduces with between hosts: those at its place where all hosts have as many members,
  // else the first of each host. World ranks.
  RankSet between() const;

  std::vector<std::vector<std::int64_t>>
      hosts;  // by host, in the order of their first members: its members, as world ranks
  std::vector<std::vector<std::int64_t>> places;  // by place: the members there, ascending
  std::int64_t host = 0;                          // of this rank, in `hosts`
  bool even = true;                               // as many members on each host
  std::int64_t rank = 0;
};

}  // namespace espalier::detail::hierarchical
