// SPDX-License-Identifier: Apache-2.0
// `espalier schedule`: what each stage of a pipeline does, as a picture, as JSON or as an SVG file.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

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
#include "espalier/base/error.hpp"
#include "espalier/plan/schedule/check.hpp"
#include "espalier/plan/schedule/render.hpp"
#include "espalier/plan/schedule/schedules.hpp"
#include "espalier/plan/schedule/simulate.hpp"

namespace espalier::command {
namespace {

using nlohmann::ordered_json;

struct ScheduleArguments {
  std::string kind;
  std::int64_t num_stages = 0;
  std::int64_t num_micro_batches = 0;
  ScheduleCosts costs;
  std::optional<std::int64_t> width;  // default: the terminal's, or 120
  bool json = false;
  std::string svg;
};

std::int64_t terminal_width() {
  winsize size{};
  const bool known = isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 120;
}

double bubble(const Simulation& simulation) {
  return simulation.span > 0 ? 1 - simulation.ideal / simulation.span : 0.0;
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
          {"bubble", bubble(simulation)},
          {"per_stage", stages}};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw ConfigError(fmt::format("schedule: '{}' cannot be written: {}", path, std::strerror(errno)));
}

void print_schedule(const ScheduleArguments& options) {
  const Schedule schedule = schedule_by_name(options.kind).generate(options.num_stages, options.num_micro_batches);
  const ScheduleReport report = check(schedule);
  const Simulation simulation = simulate(schedule, options.costs);
  const std::string title =
      fmt::format("{}: stages {}, micro-batches {}", schedule.name, schedule.num_stages(), schedule.num_micro_batches);
  if (!options.svg.empty()) write_file(options.svg, render_svg(simulation, title));
  if (options.json) {
    fmt::print("{}\n", to_json(schedule, report, options.costs, simulation).dump());
    return;
  }
  const bool color = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  fmt::print("{}\n\n{}\n", title,
             render_text(simulation, {.width = options.width ? *options.width : terminal_width(), .color = color}));
  fmt::print("time       {:g} with forward {:g}, backward {:g}, transfer {:g}\n", simulation.span,
             options.costs.forward, options.costs.backward, options.costs.transfer);
  fmt::print("bubble     {:.1f} % of it ({:g} without any)\n", 100 * bubble(simulation), simulation.ideal);
  fmt::print("live       at most {} micro-batches, by stage\n", fmt::join(report.peak_live_micro_batches, " "));
  fmt::print("buffers    {}, by stage\n", fmt::join(buffers(schedule), " "));
  fmt::print(
      "checked    complete, links agree, no deadlock even where every send waits for its "
      "receive\n");
}

}  // namespace

void add_schedule(CLI::App& app) {
  const auto options = std::make_shared<ScheduleArguments>();
  CLI::App* sub = app.add_subcommand("schedule", "Draw what each pipeline stage does, and for how long it idles");
  sub->add_option("kind", options->kind, fmt::format("One of {}", fmt::join(schedule_names(), ", ")))->required();
  sub->add_option("--stages", options->num_stages, "Number of pipeline stages")->required();
  sub->add_option("--micro-batches", options->num_micro_batches, "Micro-batches in a step")->required();
  sub->add_option("--forward", options->costs.forward, "Time of a stage's forward")->capture_default_str();
  sub->add_option("--backward", options->costs.backward, "Time of a stage's backward")->capture_default_str();
  sub->add_option("--transfer", options->costs.transfer, "Time of one transfer between stages")->capture_default_str();
  sub->add_option("--width", options->width, "Columns of the picture (default: the terminal's, or 120)");
  sub->add_flag("--json", options->json, "Print the whole schedule as JSON");
  sub->add_option("--svg", options->svg, "Also write the picture to this file");
  sub->callback([options] { print_schedule(*options); });
}

}  // namespace espalier::command
