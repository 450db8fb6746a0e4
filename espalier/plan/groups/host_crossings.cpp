// SPDX-License-Identifier: Apache-2.0
// Every family but the innermost has to cross hosts once a layout is larger than one; to say so
// would be noise. What can be helped is a run of neighbouring ranks that is cut by the end of a
// host, or dealt out to several.
#include "espalier/plan/groups/host_crossings.hpp"

#include <algorithm>
#include <map>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

struct Crossings {
  std::vector<std::string> families;  // with the same figures
  std::int64_t count = 0;
  std::int64_t size = 0;  // groups of the family
  RankSet first;

  bool same_as(const Crossings& other) const {
    return count == other.count && size == other.size && first == other.first;
  }
};

bool crosses(const RankSet& ranks, std::span<const std::int64_t> host_of_rank) {
  const auto host = [&](std::int64_t rank) { return host_of_rank[static_cast<std::size_t>(rank)]; };
  for (std::int64_t i = 1; i < ranks.size(); ++i) {
    if (host(ranks.member(i)) != host(ranks.first())) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> host_crossings(const GroupPlan& plan, std::span<const std::int64_t> host_of_rank) {
  ESPALIER_CHECK_CONFIG(plan.ranks().last() < static_cast<std::int64_t>(host_of_rank.size()),
                        "host crossings: hosts are known of {} ranks, but the plan has ranks up to "
                        "{}; expected one for each",
                        host_of_rank.size(), plan.ranks().last());
  std::map<std::int64_t, std::int64_t> ranks_of_host;
  for (const std::int64_t host : host_of_rank) ++ranks_of_host[host];
  std::int64_t largest = 0;
  for (const auto& [host, ranks] : ranks_of_host) largest = std::max(largest, ranks);

  std::map<std::string, Crossings> by_family;
  for (std::int64_t index = 0; index < plan.size(); ++index) {
    const PlannedGroup group = plan.group(index);
    if (group.ranks.last() - group.ranks.first() + 1 > largest) continue;
    if (!crosses(group.ranks, host_of_rank)) continue;
    Crossings& family = by_family[group.name.substr(0, group.name.rfind('['))];
    if (family.count++ == 0) family.first = group.ranks;
  }
  std::vector<Crossings> all;
  for (const std::string& family : plan.families()) {
    const auto found = by_family.find(family);
    if (found == by_family.end()) continue;
    Crossings& mine = found->second;
    mine.size = plan.size(family);
    auto twin = std::find_if(all.begin(), all.end(), [&](const Crossings& each) { return each.same_as(mine); });
    if (twin == all.end()) twin = all.insert(twin, mine);
    twin->families.push_back(family);
  }
  std::vector<std::string> lines;
  for (const Crossings& each : all) {
    const std::int64_t span = each.first.last() - each.first.first() + 1;
    lines.push_back(
        fmt::format("{}: {} of {} groups cross{} hosts, {} first, though the {} ranks from {} to {} would fit "
                    "on one host of {}; let sizes divide the ranks of a host, and give neighbouring ranks the "
                    "same host",
                    fmt::join(each.families, ", "), each.count, each.size, each.count == 1 ? "es" : "",
                    each.first.to_string(), span, each.first.first(), each.first.last(), largest));
  }
  return lines;
}

}  // namespace espalier
