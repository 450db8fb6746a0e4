// SPDX-License-Identifier: Apache-2.0
// `espalier layout`: every family of process groups of a layout, and each rank's place in them; with
// --plan the groups of a named plan.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Error.hpp>

#include "apps/espalier/commands.hpp"
#include "apps/espalier/layout_option.hpp"
#include "apps/espalier/plan.hpp"
#include "espalier/base/check.hpp"
#include "espalier/plan/groups/host_crossings.hpp"
#include "espalier/plan/groups/named_plans.hpp"
#include "espalier/plan/layout/layout.hpp"

namespace espalier::command {
namespace {

using nlohmann::ordered_json;

struct LayoutArguments {
  std::vector<std::string> words;          // a layout; with a plan, its settings
  std::string plan;                        // empty: a layout is meant
  std::optional<std::int64_t> world_size;  // default: what the layout multiplies to
  std::optional<std::int64_t> rank;        // default: all
  std::optional<std::int64_t> ranks_per_host;
  bool communicators = false;
  bool json = false;
};

constexpr std::array<std::string_view, 7> kAxes{"pipe",   "data",        "context",      "tensor",
                                                "expert", "expert_data", "expert_tensor"};
constexpr std::int64_t kMaxRanksInTable = 64;
constexpr std::size_t kLineWidth = 100;

Layout asked_layout(const LayoutArguments& options) {
  if (options.words.empty()) throw CLI::RequiredError("layout");
  if (options.words.size() > 1)
    throw ConfigError(
        fmt::format("layout: unexpected argument '{}'; espalier layout --help shows what it takes", options.words[1]));
  return make_layout(options.words.front(), options.world_size);
}

// Axes worth a column: those with more than one coordinate; the expert grid's only where it is not
// the dense one.
std::vector<std::string_view> wide_axes(const Layout& layout) {
  std::vector<std::string_view> axes;
  const bool experts = layout.size("expert") > 1 || layout.size("expert_tensor") != layout.size("tensor");
  for (std::string_view axis : kAxes)
    if (layout.size(axis) > 1 && (experts || !axis.starts_with("expert"))) axes.push_back(axis);
  return axes;
}

// ---- JSON ----

ordered_json axes_json(const Layout& layout) {
  ordered_json axes;
  for (std::string_view axis : kAxes) axes[std::string(axis)] = layout.size(axis);
  return axes;
}

ordered_json origins_json(const Layout& layout) {
  ordered_json origins;
  for (std::string_view axis : kAxes) origins[std::string(axis)] = layout.origin(axis);
  return origins;
}

ordered_json coordinates_json(const Layout& layout, std::int64_t rank) {
  ordered_json coordinates;
  for (std::string_view axis : kAxes) coordinates[std::string(axis)] = layout.coordinate(axis, rank);
  return coordinates;
}

ordered_json to_json(const Layout& layout, std::int64_t rank) {
  ordered_json groups;
  for (std::string_view name : layout.families()) {
    const RankSet set = layout.group(name, rank);
    groups[std::string(name)] = {{"index", *layout.family(name).index_of(rank)},
                                 {"group_rank", *set.index_of(rank)},
                                 {"ranks", set.to_vector()}};
  }
  return {{"world", layout.world_size()},
          {"axes", axes_json(layout)},
          {"origins", origins_json(layout)},
          {"rank", rank},
          {"coordinates", coordinates_json(layout, rank)},
          {"groups", groups}};
}

ordered_json to_json(const Layout& layout) {
  ordered_json families = ordered_json::array(), ranks = ordered_json::array();
  for (std::string_view name : layout.families()) {
    const Family family = layout.family(name);
    ordered_json groups = ordered_json::array();
    for (std::int64_t g = 0; g < family.size(); ++g) groups.push_back(family.set(g).to_vector());
    families.push_back({{"name", name}, {"groups", groups}});
  }
  for (std::int64_t rank = 0; rank < layout.world_size(); ++rank) {
    ordered_json groups;
    for (std::string_view name : layout.families()) groups[std::string(name)] = *layout.family(name).index_of(rank);
    ranks.push_back({{"rank", rank}, {"coordinates", coordinates_json(layout, rank)}, {"groups", groups}});
  }
  return {{"world", layout.world_size()},
          {"axes", axes_json(layout)},
          {"origins", origins_json(layout)},
          {"families", families},
          {"ranks", ranks}};
}

// ---- text ----

void print_line(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  fmt::print("{}\n", line);
}

// Families as the text shows them: those of one rank, and those whose groups an earlier family
// already has, only by name.
struct Shown {
  std::vector<std::string_view> families;
  std::vector<std::string> same;  // "expert_tensor = tensor"
  std::vector<std::string_view> single;
};

bool equal(const Family& a, const Family& b) {
  if (a.size() != b.size()) return false;
  for (std::int64_t g = 0; g < std::min(a.size(), kMaxRanksInTable); ++g)
    if (!(a.set(g) == b.set(g))) return false;
  return true;
}

Shown shown(const Layout& layout) {
  Shown result;
  for (std::string_view name : layout.families()) {
    if (layout.family(name).set(0).size() == 1) {
      result.single.push_back(name);
      continue;
    }
    const auto twin = std::find_if(result.families.begin(), result.families.end(), [&](std::string_view earlier) {
      return equal(layout.family(earlier), layout.family(name));
    });
    if (twin != result.families.end())
      result.same.push_back(fmt::format("{} = {}", name, *twin));
    else
      result.families.push_back(name);
  }
  return result;
}

void print_heading(const Layout& layout) {
  std::string sizes;
  for (std::string_view axis : wide_axes(layout))
    sizes += fmt::format("{}{} {}{}", sizes.empty() ? "" : ", ", axis, layout.size(axis), origin_note(layout, axis));
  fmt::print("{} rank{}{}{}\n", layout.world_size(), layout.world_size() == 1 ? "" : "s", sizes.empty() ? "" : ": ",
             sizes);
}

// As many groups as a few lines hold.
void print_family(const Layout& layout, std::string_view name) {
  constexpr int kMaxLines = 4;
  const Family family = layout.family(name);
  const std::string head = fmt::format("{:<14}{:>7}{:>7}  ", name, family.size(), family.set(0).size());
  std::string line = head;
  int lines = 1;
  for (std::int64_t g = 0; g < family.size(); ++g) {
    const std::string group = family.set(g).to_string();
    if (line.size() + group.size() > kLineWidth && line.size() > head.size()) {
      print_line(line);
      line = std::string(head.size(), ' ');
      if (++lines > kMaxLines) {
        line += fmt::format("... {} more", family.size() - g);
        break;
      }
    }
    line += group + " ";
  }
  print_line(line);
}

void print_families(const Layout& layout, const Shown& shown) {
  if (!shown.families.empty()) fmt::print("\n{:<14}{:>7}{:>7}  {}\n", "family", "groups", "ranks", "members");
  for (std::string_view name : shown.families) print_family(layout, name);
  fmt::print("\n");
  if (!shown.same.empty()) fmt::print("the same groups: {}\n", fmt::join(shown.same, ", "));
  if (!shown.single.empty()) fmt::print("of one rank each: {}\n", fmt::join(shown.single, ", "));
}

// Coordinates, and the number of the rank's group in each family that has several.
void print_ranks(const Layout& layout, const Shown& shown) {
  std::vector<std::string_view> families;
  for (std::string_view name : shown.families)
    if (layout.family(name).size() > 1) families.push_back(name);
  const auto axes = wide_axes(layout);
  std::string head = "\nrank";
  for (std::string_view axis : axes) head += fmt::format("  {}", axis);
  head += "   group:";
  for (std::string_view name : families) head += fmt::format("  {}", name);
  print_line(head);
  for (std::int64_t rank = 0; rank < layout.world_size(); ++rank) {
    std::string line = fmt::format("{:>4}", rank);
    for (std::string_view axis : axes) line += fmt::format("  {:>{}}", layout.coordinate(axis, rank), axis.size());
    line += "         ";
    for (std::string_view name : families)
      line += fmt::format("  {:>{}}", *layout.family(name).index_of(rank), name.size());
    print_line(line);
  }
}

void print_rank(const Layout& layout, std::int64_t rank) {
  std::string place;
  for (std::string_view axis : wide_axes(layout))
    place += fmt::format("{}{} {}", place.empty() ? "" : ", ", axis, layout.coordinate(axis, rank));
  fmt::print("\nrank {}{}{}\n\n{:<14}{:>7}{:>7}{:>7}  {}\n", rank, place.empty() ? "" : ": ", place, "family", "group",
             "ranks", "here", "members");
  for (std::string_view name : layout.families()) {
    const RankSet set = layout.group(name, rank);
    fmt::print("{:<14}{:>7}{:>7}{:>7}  {}\n", name, *layout.family(name).index_of(rank), set.size(),
               *set.index_of(rank), set.to_string());
  }
}

// What crosses hosts without need, on standard error: the answer itself stays as it is.
void warn_of_hosts(const LayoutArguments& options, const GroupPlan& plan) {
  if (!options.ranks_per_host) return;
  ESPALIER_CHECK_CONFIG(*options.ranks_per_host >= 1, "layout: --ranks-per-host {}; expected at least 1",
                        *options.ranks_per_host);
  std::vector<std::int64_t> hosts;
  for (std::int64_t rank = 0; rank < plan.world_size(); ++rank) hosts.push_back(rank / *options.ranks_per_host);
  for (const std::string& line : host_crossings(plan, hosts))
    fmt::print(stderr, "espalier: layout: warning: {}\n", line);
}

void run_plan(const LayoutArguments& options) {
  if (!options.world_size)
    throw ConfigError(fmt::format("layout: the plan {} depends on the number of ranks; add --world N", options.plan));
  const GroupPlan plan = plan_by_name(options.plan, *options.world_size, options.words);
  if (options.rank) check_rank("layout", *options.rank, plan.world_size());
  warn_of_hosts(options, plan);
  if (options.communicators)
    print_communicators(plan, options.rank, options.json);
  else
    print_plan(plan, options.rank, options.json);
}

void print_layout(const LayoutArguments& options) {
  if (!options.plan.empty()) return run_plan(options);
  const Layout layout = asked_layout(options);
  if (options.rank) check_rank("layout", *options.rank, layout.world_size());
  warn_of_hosts(options, layout_plan(layout));
  if (options.communicators) return print_communicators(layout_plan(layout), options.rank, options.json);
  if (options.json) {
    fmt::print("{}\n", (options.rank ? to_json(layout, *options.rank) : to_json(layout)).dump());
    return;
  }
  print_heading(layout);
  if (options.rank) return print_rank(layout, *options.rank);
  const Shown families = shown(layout);
  print_families(layout, families);
  if (layout.world_size() > kMaxRanksInTable)
    fmt::print("\n--rank R shows one of the {} ranks\n", layout.world_size());
  else if (layout.world_size() > 1)
    print_ranks(layout, families);
}

}  // namespace

void add_layout(CLI::App& app) {
  const auto options = std::make_shared<LayoutArguments>();
  CLI::App* sub = app.add_subcommand("layout", "Show the process groups of a layout and each rank's place in them");
  sub->add_option("layout", options->words,
                  "For example data=4,pipe=2,tensor=2,expert=2; one size may be 'rest'. With "
                  "--plan: key=value...");
  sub->add_option("--plan", options->plan, "Show the groups of this plan, in order of creation");
  sub->add_option("--world", options->world_size, "Number of ranks (default: what the sizes multiply to)");
  sub->add_option("--rank", options->rank, "Show this rank alone");
  sub->add_option("--ranks-per-host", options->ranks_per_host,
                  "Warn of groups that cross hosts of this many ranks without need");
  sub->add_flag("--communicators", options->communicators, "Show how many communicators each rank opens");
  sub->add_flag("--json", options->json, "Print JSON");
  sub->footer(named_plans_help);
  sub->callback([options] { print_layout(*options); });
}

}  // namespace espalier::command
