// SPDX-License-Identifier: Apache-2.0
// `espalier explain`: one rank of a layout in words: its place, and along each axis what it does
// and whom it talks to for that. A row of kAxes for every axis that it shares with others.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>

#include "apps/espalier/commands.hpp"
#include "apps/espalier/layout_option.hpp"
#include "espalier/plan/groups/named_plans.hpp"

namespace espalier::command {
namespace {

constexpr std::size_t kNameWidth = 14;

// A rank's view of one family.
struct View {
  const Layout& layout;
  std::int64_t rank;

  RankSet group(std::string_view family) const { return layout.group(family, rank); }
  std::int64_t size(std::string_view family) const { return group(family).size(); }

  // "rank 7", "ranks 1, 3, 5", "5 ranks of [0,2,..,14] ..."
  std::string others(std::string_view family) const {
    constexpr std::int64_t kMostListed = 8;
    const RankSet set = group(family);
    if (set.size() - 1 > kMostListed) return fmt::format("the {} others of {}", set.size() - 1, set.to_string());
    std::vector<std::int64_t> ranks;
    for (const std::int64_t member : set.to_vector())
      if (member != rank) ranks.push_back(member);
    return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
  }

  // "part 1 of 4", counted from 1 as people do.
  std::string part(std::string_view axis) const {
    return fmt::format("part {} of {}", layout.coordinate(axis, rank) + 1, layout.size(axis));
  }

  // "expert_tensor part 1 of 2 (as tensor)"
  std::string place(std::string_view axis) const {
    return fmt::format("{} {}{}", axis, part(axis), origin_note(layout, axis));
  }
};

std::string stage_name(const View& view) {
  const std::int64_t stage = view.layout.coordinate("pipe", view.rank);
  const std::int64_t stages = view.layout.size("pipe");
  if (stage == 0) return fmt::format("the first of {} stages", stages);
  if (stage == stages - 1) return fmt::format("the last of {} stages", stages);
  return fmt::format("stage {} of {}", stage + 1, stages);
}

std::string about_pipe(const View& view) {
  const RankSet stages = view.group("pipe");
  const std::int64_t stage = view.layout.coordinate("pipe", view.rank);
  const bool first = stage == 0;
  const bool last = stage + 1 == stages.size();
  std::string text = fmt::format("runs {}; ", stage_name(view));
  if (first)
    text += "loads the inputs; ";
  else
    text += fmt::format("receives activations from rank {} and sends their gradients back; ", stages.member(stage - 1));
  if (last)
    text += "loads the targets and computes the loss";
  else
    text += fmt::format("sends activations to rank {} and receives their gradients", stages.member(stage + 1));
  if (!first && !last) text += "; loads no data";
  return text;
}

std::string about_data(const View& view) {
  const std::string work = fmt::format("works on {} of every batch", view.part("data"));
  if (view.size("context") > 1) return work;  // data_context has more to say
  return fmt::format("{}; averages gradients and loss with {}, once a step", work, view.others("data"));
}

std::string about_context(const View& view) {
  return fmt::format(
      "works on {} of every sequence; exchanges keys and values with {} in every "
      "attention layer",
      view.part("context"), view.others("context"));
}

std::string about_data_context(const View& view) {
  return fmt::format("averages gradients and loss over data and context at once with {}, once a step",
                     view.others("data_context"));
}

std::string about_tensor(const View& view) {
  return fmt::format(
      "holds {} of every layer that is cut; adds up with {} what the parts compute, "
      "in every such layer, forward and backward",
      view.part("tensor"), view.others("tensor"));
}

std::string about_model(const View& view) {
  return fmt::format(
      "adds up the norm of all gradients, and learns of any that are not finite, "
      "with {}",
      view.others("model"));
}

std::string about_stage(const View& view) {
  return fmt::format("holds layers of the same stage as {}", view.others("stage"));
}

std::string about_expert(const View& view) {
  return fmt::format(
      "holds {} of the experts; exchanges tokens with {} in every expert layer, "
      "forward and backward",
      view.part("expert"), view.others("expert"));
}

std::string about_expert_data(const View& view) {
  return fmt::format("averages the gradients of its experts with {}, which hold the same ones",
                     view.others("expert_data"));
}

std::string about_expert_tensor(const View& view) {
  return fmt::format("holds {} of each of its experts; adds up with {} what the parts compute",
                     view.part("expert_tensor"), view.others("expert_tensor"));
}

std::string about_expert_model(const View& view) {
  return fmt::format("adds up the norm of the experts' gradients with {}", view.others("expert_model"));
}

struct Row {
  std::string_view family;
  std::string (*about)(const View&);
  bool (*applies)(const View&);
};

bool always(const View&) { return true; }
bool has_experts(const View& view) {
  return view.layout.size("expert") > 1 || view.layout.size("expert_tensor") != view.layout.size("tensor");
}
bool has_data_and_context(const View& view) { return view.size("data") > 1 && view.size("context") > 1; }

constexpr std::array<Row, 11> kRows{{{"pipe", about_pipe, always},
                                     {"data", about_data, always},
                                     {"context", about_context, always},
                                     {"data_context", about_data_context, has_data_and_context},
                                     {"tensor", about_tensor, always},
                                     {"model", about_model, always},
                                     {"stage", about_stage, always},
                                     {"expert", about_expert, has_experts},
                                     {"expert_data", about_expert_data, has_experts},
                                     {"expert_tensor", about_expert_tensor, has_experts},
                                     {"expert_model", about_expert_model, has_experts}}};

// "rank 5 of 8: the last of 2 stages, data 0 of 2"
void print_place(const View& view) {
  std::vector<std::string> places;
  if (view.layout.size("pipe") > 1) places.push_back(stage_name(view));
  for (const std::string_view axis : {"data", "context", "tensor"}) {
    if (view.layout.size(axis) > 1) places.push_back(view.place(axis));
  }
  if (has_experts(view)) {
    for (const std::string_view axis : {"expert", "expert_data", "expert_tensor"}) {
      if (view.layout.size(axis) > 1) places.push_back(view.place(axis));
    }
  }
  fmt::print("rank {}, one of {}{}{}\n", view.rank, view.layout.world_size(), places.empty() ? "" : ": ",
             fmt::join(places, ", "));
}

void print_opened(const View& view) {
  const GroupPlan plan = layout_plan(view.layout);
  std::vector<std::string> opened;
  for (const std::int64_t index : plan.communicators_of(view.rank, plan.world_size())) {
    const PlannedGroup group = plan.group(index);
    opened.push_back(fmt::format("{} {}", group.name, group.ranks.to_string()));
  }
  fmt::print("opens {} communicator{} besides the world's{}{}\n", opened.size(), opened.size() == 1 ? "" : "s",
             opened.empty() ? "" : ": ", fmt::join(opened, ", "));
}

void explain(const Layout& layout, std::int64_t rank) {
  const View view{layout, rank};
  print_place(view);
  std::vector<std::string_view> alone;
  fmt::print("\n");
  for (const Row& row : kRows) {
    if (!row.applies(view)) continue;
    if (view.size(row.family) == 1)
      alone.push_back(row.family);
    else
      fmt::print("{:<{}}{}\n", row.family, kNameWidth, row.about(view));
  }
  if (!alone.empty()) fmt::print("{:<{}}{}\n", "alone in", kNameWidth, fmt::join(alone, ", "));
  fmt::print("\n");
  print_opened(view);
}

struct Options {
  std::int64_t rank = 0;
  std::string layout;
  std::optional<std::int64_t> world_size;
};

}  // namespace

void add_explain(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("explain", "Say in words what a rank of a layout is, whom it talks to, and for what");
  sub->add_option("rank", options->rank, "Which rank")->required();
  sub->add_option("--layout", options->layout, "As for espalier layout: data=4,pipe=2,tensor=2")->required();
  sub->add_option("--world", options->world_size, "Number of ranks (default: what the sizes multiply to)");
  sub->callback([options] {
    const Layout layout = make_layout(options->layout, options->world_size);
    check_rank("explain", options->rank, layout.world_size());
    explain(layout, options->rank);
  });
}

}  // namespace espalier::command
