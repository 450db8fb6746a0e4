// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/hierarchical/placement.hpp"

#include <algorithm>
#include <map>

namespace espalier::detail::hierarchical {

Placement::Placement(const RankSet& members, std::span<const std::int64_t> host_of_rank, std::int64_t the_rank)
    : rank(the_rank) {
  std::map<std::int64_t, std::size_t> index_of;  // host's number -> in `hosts`
  for (const std::int64_t member : members.to_vector()) {
    const auto [found, is_new] = index_of.emplace(host_of_rank[static_cast<std::size_t>(member)], hosts.size());
    if (is_new) hosts.emplace_back();
    std::vector<std::int64_t>& ranks = hosts[found->second];
    if (ranks.size() == places.size()) places.emplace_back();
    places[ranks.size()].push_back(member);  // members ascend
    ranks.push_back(member);
    if (member == rank) host = static_cast<std::int64_t>(found->second);
  }
  even = std::ranges::all_of(hosts, [&](const auto& ranks) { return ranks.size() == hosts.front().size(); });
}

std::int64_t Placement::place() const {
  const auto& mine = hosts[static_cast<std::size_t>(host)];
  return std::ranges::find(mine, rank) - mine.begin();
}

RankSet Placement::between() const { return RankSet::of(places[static_cast<std::size_t>(even ? place() : 0)]); }

}  // namespace espalier::detail::hierarchical
