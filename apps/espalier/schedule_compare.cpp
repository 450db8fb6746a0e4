// SPDX-License-Identifier: Apache-2.0
// `espalier schedule --compare`: all schedules of the same stages and micro-batches beside each other.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/espalier/schedule_options.hpp"
#include "espalier/base/check.hpp"
#include "espalier/plan/schedule/check.hpp"
#include "espalier/plan/schedule/schedules.hpp"

namespace espalier::command {
namespace {

using nlohmann::ordered_json;

struct Compared {
  std::string name;
  std::int64_t num_chunks = 1;
  double span = 0.0;
  double ideal = 0.0;
  double peak_live = 0.0;  // activations of how many micro-batches, over a rank's whole part
  std::string refusal;     // why it cannot be with these numbers
};

double largest(const std::vector<std::int64_t>& values) {
  return static_cast<double>(*std::max_element(values.begin(), values.end()));
}

Compared compared(std::string_view name, const ScheduleArguments& options) {
  const Schedule schedule = schedule_by_name(name).generate(options.size.num_ranks, options.size.num_micro_batches);
  const Simulation simulation = simulate(schedule, options.stage_costs());
  return {.name = schedule.name,
          .span = simulation.span,
          .ideal = simulation.ideal,
          .peak_live = largest(check(schedule).peak_live_micro_batches),
          .refusal = {}};
}

Compared compared_chunks(std::string_view name, const ScheduleArguments& options) {
  const ComputeSchedule schedule = compute_schedule_by_name(name, options.size);
  const std::int64_t chunks = schedule.places.num_chunks;
  const ComputeSimulation simulation = simulate(schedule, options.chunk_costs(chunks));
  return {.name = schedule.name,
          .num_chunks = chunks,
          .span = simulation.span,
          .ideal = simulation.ideal,
          .peak_live = largest(check(schedule).peak_live) / static_cast<double>(chunks),
          .refusal = {}};
}

std::vector<Compared> compare(const ScheduleArguments& options) {
  std::vector<Compared> rows;
  const auto add = [&](std::string_view name, Compared (*make)(std::string_view, const ScheduleArguments&)) {
    try {
      rows.push_back(make(name, options));
    } catch (const ConfigError& error) {
      const std::string text = error.what(), begin = fmt::format("schedule {}: ", name);
      rows.push_back(
          {.name = std::string(name), .refusal = text.starts_with(begin) ? text.substr(begin.size()) : text});
    }
  };
  for (const std::string_view name : {"gpipe", "1f1b"}) add(name, compared);
  for (const std::string_view name : compute_schedule_names()) add(name, compared_chunks);
  return rows;
}

// Of those that fit; null where none does.
const Compared* fastest(const std::vector<Compared>& rows, const std::optional<double>& max_live) {
  const Compared* best = nullptr;
  for (const Compared& row : rows) {
    const bool fits = row.refusal.empty() && (!max_live || row.peak_live <= *max_live);
    if (fits && (best == nullptr || row.span < best->span)) best = &row;
  }
  return best;
}

}  // namespace

void print_comparison(const ScheduleArguments& options) {
  const std::vector<Compared> rows = compare(options);
  ESPALIER_CHECK_CONFIG(std::ranges::any_of(rows, [](const Compared& row) { return row.refusal.empty(); }),
                        "schedule: {}", rows.front().refusal);
  const Compared* best = fastest(rows, options.max_live);
  if (options.json) {
    ordered_json list = ordered_json::array();
    for (const Compared& row : rows) {
      if (!row.refusal.empty()) {
        list.push_back({{"schedule", row.name}, {"refusal", row.refusal}});
        continue;
      }
      list.push_back({{"schedule", row.name},
                      {"chunks", row.num_chunks},
                      {"time", row.span},
                      {"ideal_time", row.ideal},
                      {"bubble", bubble(row.span, row.ideal)},
                      {"peak_live", row.peak_live}});
    }
    fmt::print("{}\n", ordered_json{{"schedules", list},
                                    {"fastest", best == nullptr ? ordered_json() : ordered_json(best->name)}}
                           .dump());
    return;
  }
  fmt::print("stages {}, micro-batches {}; forward {:g}, backward {:g} (weights {:g}), transfer {:g}\n\n",
             options.size.num_ranks, options.size.num_micro_batches, options.forward, options.backward,
             options.weight_time(), options.transfer);
  fmt::print("{:<14}{:>7}{:>9}{:>9}{:>8}\n", "schedule", "chunks", "time", "bubble", "live");
  for (const Compared& row : rows) {
    if (!row.refusal.empty()) {
      fmt::print("{:<14}{}\n", row.name, row.refusal);
      continue;
    }
    fmt::print("{:<14}{:>7}{:>9g}{:>7.1f} %{:>8g}{}\n", row.name, row.num_chunks, row.span,
               100 * bubble(row.span, row.ideal), row.peak_live, &row == best ? "  fastest" : "");
  }
  fmt::print("\nlive: most micro-batches whose activations a rank keeps, of all its layers\n");
  if (options.max_live && best == nullptr) fmt::print("none keeps at most {:g}\n", *options.max_live);
}

}  // namespace espalier::command
