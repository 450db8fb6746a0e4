// SPDX-License-Identifier: Apache-2.0
// `espalier schedule`: what each stage of a pipeline does, as a picture, as JSON or as an SVG file.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "apps/espalier/commands.hpp"
#include "apps/espalier/schedule_options.hpp"
#include "espalier/base/check.hpp"
#include "espalier/plan/schedule/check.hpp"
#include "espalier/plan/schedule/render.hpp"
#include "espalier/plan/schedule/schedules.hpp"
#include "espalier/plan/schedule/timeline.hpp"

namespace espalier::command {
namespace {

using nlohmann::ordered_json;

std::int64_t terminal_width() {
  winsize size{};
  const bool known = isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 120;
}

std::vector<std::int64_t> buffers(const Schedule& schedule) {
  std::vector<std::int64_t> numbers;
  for (const StageProgram& program : schedule.stages) numbers.push_back(program.num_buffers);
  return numbers;
}

// An instruction is [code, buffer, micro-batch], or [code] without one.
ordered_json to_json(const StageProgram& program) {
  ordered_json steps = ordered_json::array();
  for (const auto& step : program.steps) {
    ordered_json list = ordered_json::array();
    for (const Instruction& i : step) {
      ordered_json words = ordered_json::array({code(i.op)});
      if (has_micro_batch(i.op)) words.insert(words.end(), {i.buffer, i.micro_batch});
      list.push_back(words);
    }
    steps.push_back(list);
  }
  return steps;
}

ordered_json to_json(const Schedule& schedule, const ScheduleReport& report, const ScheduleCosts& costs,
                     const Simulation& simulation) {
  ordered_json stages = ordered_json::array();
  for (std::int64_t s = 0; s < schedule.num_stages(); ++s)
    stages.push_back({{"buffers", schedule.stages[s].num_buffers},
                      {"peak_live", report.peak_live_micro_batches[s]},
                      {"steps", to_json(schedule.stages[s])}});
  return {{"schedule", schedule.name},
          {"stages", schedule.num_stages()},
          {"micro_batches", schedule.num_micro_batches},
          {"costs", {{"forward", costs.forward}, {"backward", costs.backward}, {"transfer", costs.transfer}}},
          {"time", simulation.span},
          {"ideal_time", simulation.ideal},
          {"bubble", bubble(simulation.span, simulation.ideal)},
          {"per_stage", stages}};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw ConfigError(fmt::format("schedule: '{}' cannot be written: {}", path, std::strerror(errno)));
}

// Instructions as [code, micro-batch, chunk].
ordered_json to_json(const ComputeSchedule& schedule, const ComputeReport& report, const ScheduleArguments& options,
                     const ComputeSimulation& simulation) {
  ordered_json ranks = ordered_json::array();
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    ordered_json steps = ordered_json::array();
    for (const ComputeStep& step : schedule.ranks[rank])
      steps.push_back({code(step.pass), step.micro_batch, step.chunk});
    ranks.push_back({{"peak_live_chunks", report.peak_live[rank]}, {"steps", steps}});
  }
  return {{"schedule", schedule.name},
          {"stages", schedule.places.num_ranks},
          {"chunks", schedule.places.num_chunks},
          {"micro_batches", schedule.num_micro_batches},
          {"costs",
           {{"forward", options.forward},
            {"backward", options.backward},
            {"weight", options.weight_time()},
            {"transfer", options.transfer}}},
          {"time", simulation.span},
          {"ideal_time", simulation.ideal},
          {"bubble", bubble(simulation.span, simulation.ideal)},
          {"per_rank", ranks}};
}

void print_picture(const Timeline& drawn, const std::string& title, const ScheduleArguments& options) {
  const bool color = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  fmt::print("{}\n\n{}\n", title,
             render_text(drawn, {.width = options.width ? *options.width : terminal_width(), .color = color}));
}

void print_bubble(const Timeline& drawn) {
  fmt::print("bubble     {:.1f} % of it ({:g} without any)\n", 100 * bubble(drawn.span, drawn.ideal), drawn.ideal);
}

void print_stages(const ScheduleArguments& options) {
  const Schedule schedule =
      schedule_by_name(options.kind).generate(options.size.num_ranks, options.size.num_micro_batches);
  const ScheduleReport report = check(schedule);
  const ScheduleCosts costs = options.stage_costs();
  const Simulation simulation = simulate(schedule, costs);
  const Timeline drawn = timeline(simulation);
  const std::string title =
      fmt::format("{}: stages {}, micro-batches {}", schedule.name, schedule.num_stages(), schedule.num_micro_batches);
  if (!options.svg.empty()) write_file(options.svg, render_svg(drawn, title));
  if (options.json) {
    fmt::print("{}\n", to_json(schedule, report, costs, simulation).dump());
    return;
  }
  print_picture(drawn, title, options);
  fmt::print("time       {:g} with forward {:g}, backward {:g}, transfer {:g}\n", simulation.span, costs.forward,
             costs.backward, costs.transfer);
  print_bubble(drawn);
  fmt::print("live       at most {} micro-batches, by stage\n", fmt::join(report.peak_live_micro_batches, " "));
  fmt::print("buffers    {}, by stage\n", fmt::join(buffers(schedule), " "));
  fmt::print("checked    complete, links agree, no deadlock even where every send waits for its receive\n");
}

void print_chunks(const ScheduleArguments& options) {
  const ComputeSchedule schedule = compute_schedule_by_name(options.kind, options.size);
  const ComputeReport report = check(schedule);
  const std::int64_t chunks = schedule.places.num_chunks;
  const ComputeSimulation simulation = simulate(schedule, options.chunk_costs(chunks));
  const Timeline drawn = timeline(simulation);
  const std::string title = fmt::format("{}: ranks {}, chunks {}, micro-batches {}", schedule.name,
                                        schedule.places.num_ranks, chunks, schedule.num_micro_batches);
  if (!options.svg.empty()) write_file(options.svg, render_svg(drawn, title));
  if (options.json) {
    fmt::print("{}\n", to_json(schedule, report, options, simulation).dump());
    return;
  }
  print_picture(drawn, title, options);
  fmt::print("time       {:g} with forward {:g}, backward {:g} (weights {:g}) of a rank's {}, transfer {:g}\n",
             simulation.span, options.forward, options.backward, options.weight_time(),
             chunks == 1 ? "stage" : fmt::format("{} chunks", chunks), options.transfer);
  print_bubble(drawn);
  fmt::print("live       at most {} chunks' micro-batches, by rank\n", fmt::join(report.peak_live, " "));
  fmt::print("checked    complete, no deadlock; the engine does not run it yet\n");
}

void print_schedule(const ScheduleArguments& options) {
  ESPALIER_CHECK_CONFIG(options.compare == options.kind.empty(),
                        "schedule: expected either a kind or --compare, which shows all kinds");
  if (options.compare) return print_comparison(options);
  const auto of_stages = schedule_names();
  const auto of_chunks = compute_schedule_names();
  if (std::ranges::find(of_chunks, options.kind) != of_chunks.end()) return print_chunks(options);
  ESPALIER_CHECK_CONFIG(std::ranges::find(of_stages, options.kind) != of_stages.end(),
                        "schedule: '{}' is unknown; there are {}, {}", options.kind, fmt::join(of_stages, ", "),
                        fmt::join(of_chunks, ", "));
  print_stages(options);
}

}  // namespace

ComputeCosts ScheduleArguments::chunk_costs(std::int64_t num_chunks) const {
  ESPALIER_CHECK_CONFIG(weight_time() >= 0 && weight_time() <= backward,
                        "schedule: --weight {:g} of --backward {:g}; expected a part of it", weight_time(), backward);
  const auto part = 1.0 / static_cast<double>(num_chunks);
  return {.forward = forward * part,
          .backward = backward * part,
          .backward_input = (backward - weight_time()) * part,
          .backward_weight = weight_time() * part,
          .transfer = transfer};
}

double bubble(double span, double ideal) { return span > 0 ? 1 - ideal / span : 0.0; }

void add_schedule(CLI::App& app) {
  const auto options = std::make_shared<ScheduleArguments>();
  CLI::App* sub = app.add_subcommand("schedule", "Draw what each pipeline stage does, and for how long it idles");
  sub->add_option(
      "kind", options->kind,
      fmt::format("One of {}, {}", fmt::join(schedule_names(), ", "), fmt::join(compute_schedule_names(), ", ")));
  sub->add_flag("--compare", options->compare, "Instead of one kind: all of them in a table");
  sub->add_option("--stages", options->size.num_ranks, "Number of pipeline stages, each a rank's")->required();
  sub->add_option("--micro-batches", options->size.num_micro_batches, "Micro-batches in a step")->required();
  sub->add_option("--chunks", options->size.num_chunks, "Chunks of a rank's layers: interleaved, breadth-first")
      ->capture_default_str();
  sub->add_option("--group", options->size.group_size, "interleaved: micro-batches through a chunk at a time");
  sub->add_option("--forward", options->forward, "Time of a stage's forward")->capture_default_str();
  sub->add_option("--backward", options->backward, "Time of a stage's backward")->capture_default_str();
  sub->add_option("--weight", options->weight, "Of the backward, time of the weights' half (default: half of it)");
  sub->add_option("--transfer", options->transfer, "Time of one transfer between stages")->capture_default_str();
  sub->add_option("--max-live", options->max_live, "--compare: the fastest that keeps at most so many micro-batches");
  sub->add_option("--width", options->width, "Columns of the picture (default: the terminal's, or 120)");
  sub->add_flag("--json", options->json, "Print the whole schedule as JSON");
  sub->add_option("--svg", options->svg, "Also write the picture to this file");
  sub->callback([options] { print_schedule(*options); });
}

}  // namespace espalier::command
