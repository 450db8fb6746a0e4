// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "espalier/plan/groups/named_plans.hpp"

namespace espalier::command {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMaxGroupsInTable = 64;

std::string counted(std::int64_t count, const std::string& one, const std::string& several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

std::vector<std::int64_t> all_groups(const GroupPlan& plan) {
  std::vector<std::int64_t> groups;
  for (std::int64_t i = 0; i < plan.size(); ++i) groups.push_back(i);
  return groups;
}

ordered_json groups_json(const GroupPlan& plan, const std::vector<std::int64_t>& indices) {
  ordered_json groups = ordered_json::array();
  for (const std::int64_t index : indices) {
    const PlannedGroup group = plan.group(index);
    groups.push_back({{"name", group.name}, {"ranks", group.ranks.to_vector()}});
  }
  return groups;
}

// One line a group, names and sizes in columns; with the place of `rank`, if one is asked for.
void print_table(const GroupPlan& plan, const std::vector<std::int64_t>& indices, std::optional<std::int64_t> rank) {
  const auto shown = std::min<std::size_t>(indices.size(), kMaxGroupsInTable);
  std::size_t width = 5;
  for (std::size_t i = 0; i < shown; ++i) width = std::max(width, plan.group(indices[i]).name.size());
  fmt::print("{:<{}}{:>7}{}  members\n", "group", width, "ranks", rank ? "   here" : "");
  for (std::size_t i = 0; i < shown; ++i) {
    const PlannedGroup group = plan.group(indices[i]);
    const std::string here = rank ? fmt::format("{:>7}", *group.ranks.index_of(*rank)) : "";
    fmt::print("{:<{}}{:>7}{}  {}\n", group.name, width, group.ranks.size(), here, group.ranks.to_string());
  }
  if (shown < indices.size())
    fmt::print("... {} more; --rank R shows one rank's, --json all\n", indices.size() - shown);
}

// Of all ranks; `total` counts each communicator once, at its first member.
struct Opened {
  std::vector<std::int64_t> by_rank;
  std::int64_t total = 0;
};

Opened opened_by_all(const GroupPlan& plan) {
  Opened result;
  for (std::int64_t rank = 0; rank < plan.world_size(); ++rank) {
    const std::vector<std::int64_t> own = plan.communicators_of(rank, plan.world_size());
    result.by_rank.push_back(static_cast<std::int64_t>(own.size()));
    for (const std::int64_t index : own)
      if (plan.group(index).ranks.first() == rank) ++result.total;
  }
  return result;
}

}  // namespace

void print_plan(const GroupPlan& plan, std::optional<std::int64_t> rank, bool json) {
  const std::vector<std::int64_t> indices = rank ? plan.groups_of(*rank) : all_groups(plan);
  if (json) {
    ordered_json result{{"world", plan.world_size()}};
    if (rank) result["rank"] = *rank;
    result["groups"] = groups_json(plan, indices);
    fmt::print("{}\n", result.dump());
    return;
  }
  fmt::print("{}: {} in {}", counted(plan.world_size(), "rank", "ranks"), counted(plan.size(), "group", "groups"),
             counted(static_cast<std::int64_t>(plan.families().size()), "family", "families"));
  if (rank) fmt::print("; rank {} is in {}", *rank, indices.size());
  fmt::print("\n");
  if (indices.empty()) return;
  fmt::print("\n");
  print_table(plan, indices, rank);
}

void print_communicators(const GroupPlan& plan, std::optional<std::int64_t> rank, bool json) {
  if (rank) {
    const std::vector<std::int64_t> own = plan.communicators_of(*rank, plan.world_size());
    if (json) {
      fmt::print("{}\n",
                 ordered_json{{"world", plan.world_size()}, {"rank", *rank}, {"communicators", groups_json(plan, own)}}
                     .dump());
      return;
    }
    fmt::print("rank {} opens {} besides the world's\n", *rank,
               counted(static_cast<std::int64_t>(own.size()), "communicator", "communicators"));
    if (own.empty()) return;
    fmt::print("\n");
    print_table(plan, own, rank);
    return;
  }
  const Opened opened = opened_by_all(plan);
  if (json) {
    fmt::print("{}\n",
               ordered_json{{"world", plan.world_size()}, {"communicators", opened.total}, {"by_rank", opened.by_rank}}
                   .dump());
    return;
  }
  fmt::print("{}: {} besides the world's\n\n", counted(plan.world_size(), "rank", "ranks"),
             counted(opened.total, "communicator", "communicators"));
  std::map<std::int64_t, std::vector<std::int64_t>> ranks_by_count;
  for (std::size_t each = 0; each < opened.by_rank.size(); ++each)
    ranks_by_count[opened.by_rank[each]].push_back(static_cast<std::int64_t>(each));
  fmt::print("opened by each of the ranks\n");
  for (const auto& [count, ranks] : ranks_by_count) fmt::print("{:>14}  {}\n", count, RankSet::of(ranks).to_string());
}

std::string named_plans_help() {
  std::string text = "PLANS\n";
  for (const NamedPlan& plan : named_plans()) text += fmt::format("  {:<20}{}\n", plan.name, plan.settings);
  return text;
}

}  // namespace espalier::command
