// SPDX-License-Identifier: Apache-2.0
// `espalier verify-groups`: every group of a plan, made on real ranks. Each member puts its rank's
// number at its own place of a vector as long as the world; what their sum and the group's broadcast
// give is compared with the plan, member by member.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apps/espalier_train/commands.hpp"
#include "apps/espalier_train/self_launch.hpp"
#include "espalier/base/check.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/group_set.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/plan/groups/named_plans.hpp"
#include "espalier/plan/launch/environment.hpp"

namespace espalier::command {
namespace {

constexpr int kNotAsPlanned = 1;  // exit code
constexpr std::chrono::seconds kTimeLimit(60);
constexpr std::int64_t kMostRanks = 256;  // that are started here

struct GroupsOptions {
  std::string layout;
  std::string plan;                   // instead of a layout
  std::vector<std::string> settings;  // of the plan
  std::optional<std::int64_t> world_size;
  std::string as;       // "threads", "processes"; empty: processes inside a launcher
  std::string backend;  // empty: World's own choice

  GroupPlan planned(std::int64_t num_ranks) const {
    if (!plan.empty()) return plan_by_name(plan, num_ranks, settings);
    return layout_plan(Layout(Layout::parse(layout), num_ranks));
  }

  WorldOptions world() const {
    WorldOptions options;
    options.timeout = kTimeLimit;
    options.log = stderr_sink(LogLevel::warning);
    if (!backend.empty()) options.backend = backend_by_name(backend);
    return options;
  }
};

// 1 where what came through the group is not what the plan says.
std::int64_t differs(const Group& group, const RankSet& planned, const World& world) {
  at::Tensor expected = at::zeros({world.size()}, at::kLong);
  for (const std::int64_t member : planned.to_vector()) expected[member] = member + 1;
  at::Tensor sum = at::zeros({world.size()}, at::kLong);
  sum[world.rank()] = world.rank() + 1;
  all_reduce_(sum, group).wait();
  at::Tensor source = at::full({1}, world.rank(), at::kLong);
  broadcast_(source, group, group.group_rank(planned.first()).value_or(0)).wait();
  const bool as_planned = sum.equal(expected) && source.equal(at::full({1}, planned.first(), at::kLong));
  return as_planned ? 0 : 1;
}

// On every rank: for each group of the plan, how many of its members saw something else.
at::Tensor differences(const World& world, const GroupSet& groups) {
  const GroupPlan& plan = groups.plan();
  at::Tensor counts = at::zeros({plan.size()}, at::kLong);
  const std::vector<std::int64_t> mine = plan.groups_of(world.rank());
  for (std::size_t i = 0; i < mine.size(); ++i)
    counts[mine[i]] = differs(groups.groups()[i], plan.group(mine[i]).ranks, world);
  all_reduce_(counts, world.group()).wait();
  return counts;
}

std::string counted(std::int64_t count, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

// Prints a line a family; whether all is as planned.
bool print_comparison(const World& world, const GroupSet& groups, const at::Tensor& counts) {
  const GroupPlan& plan = groups.plan();
  const std::int64_t* count = counts.const_data_ptr<std::int64_t>();
  fmt::print("{} ({}) over {}: {} in {}; rank 0 opened {}\n\n", counted(world.size(), "rank", "ranks"),
             world.launcher(), to_string(world.backend()), counted(plan.size(), "group", "groups"),
             counted(static_cast<std::int64_t>(plan.families().size()), "family", "families"),
             counted(groups.num_communicators(), "communicator", "communicators"));
  fmt::print("{:<18}{:>7}  {}\n", "family", "groups", "all-reduce and broadcast");
  std::int64_t num_different = 0;
  for (const std::string& family : plan.families()) {
    std::vector<std::string> different;
    for (std::int64_t index = 0; index < plan.size(); ++index) {
      const PlannedGroup group = plan.group(index);
      if (count[index] == 0 || !group.name.starts_with(family + "[")) continue;
      different.push_back(
          fmt::format("{} {} on {}", group.name, group.ranks.to_string(), counted(count[index], "rank", "ranks")));
    }
    num_different += static_cast<std::int64_t>(different.size());
    fmt::print("{:<18}{:>7}  {}\n", family, plan.size(family),
               different.empty() ? "as planned" : fmt::format("DIFFERENT: {}", fmt::join(different, ", ")));
  }
  if (num_different == 0)
    fmt::print("\nas planned: {}\n", counted(plan.size(), "group", "groups"));
  else
    fmt::print("\nDIFFERENT: {} of {}\n", num_different, counted(plan.size(), "group", "groups"));
  return num_different == 0;
}

bool verify_on_rank(const World& world, const GroupsOptions& options) {
  const GroupSet groups(world, options.planned(world.size()));
  groups.warm_up(kTimeLimit);
  const at::Tensor counts = differences(world, groups);
  bool as_planned = true;
  if (world.rank() == 0) as_planned = print_comparison(world, groups, counts);
  return as_planned;
}

// nullopt when a launcher has to say it.
std::optional<std::int64_t> asked_ranks(const GroupsOptions& options) {
  if (options.world_size) return options.world_size;
  if (!options.plan.empty()) return std::nullopt;
  return num_ranks_of(Layout::parse(options.layout));
}

void verify_groups(const GroupsOptions& options) {
  ESPALIER_CHECK_CONFIG(options.layout.empty() != options.plan.empty(),
                        "verify-groups: {}; expected --layout SIZES, or --plan NAME key=value... --world N",
                        options.plan.empty() ? "there is nothing to verify" : "both a layout and a plan");
  ESPALIER_CHECK_CONFIG(options.settings.empty() || !options.plan.empty(),
                        "verify-groups: unexpected argument '{}'; key=value goes with --plan",
                        options.settings.front());
  const RankEnvironment found = discover_ranks(process_variables());
  const bool launched = found.launcher != Launcher::alone;
  ESPALIER_CHECK_CONFIG(!launched || options.as != "threads",
                        "verify-groups: --as threads, but this is a rank of {} already; leave it out there",
                        to_string(found.launcher));
  const std::optional<std::int64_t> num_ranks = asked_ranks(options);
  const auto ranks = launched ? std::optional(found.world_size.value) : num_ranks;
  ESPALIER_CHECK_CONFIG(ranks.has_value(), "verify-groups: the number of ranks is not known; add --world N");
  ESPALIER_CHECK_CONFIG(
      launched || *ranks <= kMostRanks,
      "verify-groups: {} ranks on this host; expected at most {}: start it with a launcher on several", *ranks,
      kMostRanks);
  options.planned(*ranks);  // what is wrong with the request is said before any rank starts
  const WorldOptions world_options = options.world();

  bool as_planned = true;
  if (launched || options.as == "processes") {
    run_as_ranks("verify-groups", ranks,
                 [&] { as_planned = verify_on_rank(World::from_environment(world_options), options); });
  } else {
    run_ranks(
        *ranks,
        [&](World& world) {
          const bool mine = verify_on_rank(world, options);
          if (world.rank() == 0) as_planned = mine;
        },
        world_options);
  }
  if (!as_planned) throw CLI::RuntimeError(kNotAsPlanned);
}

}  // namespace

void add_verify_groups(CLI::App& app) {
  const auto options = std::make_shared<GroupsOptions>();
  CLI::App* sub =
      app.add_subcommand("verify-groups", "Make every group of a layout and compare what it reduces with the plan");
  sub->add_option("--layout", options->layout, "Sizes of the axes: pipe=2,data=2,tensor=2");
  sub->add_option("--plan", options->plan, "A named plan instead of a layout; espalier layout --help lists them");
  sub->add_option("settings", options->settings, "With --plan: key=value...");
  sub->add_option("--world", options->world_size, "Number of ranks (default: what the layout's sizes multiply to)");
  sub->add_option("--as", options->as, "Ranks are threads (default) or processes")
      ->check(CLI::IsMember({"threads", "processes"}));
  sub->add_option("--backend", options->backend, "host, gloo, hierarchical or mpi");
  sub->callback([options] { verify_groups(*options); });
}

}  // namespace espalier::command
