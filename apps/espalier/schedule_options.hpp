// SPDX-License-Identifier: Apache-2.0
// What `espalier schedule` was asked for, and any of its schedules played with that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/plan/schedule/compute_schedules.hpp"
#include "espalier/plan/schedule/compute_simulation.hpp"
#include "espalier/plan/schedule/simulate.hpp"

namespace espalier::command {

struct ScheduleArguments {
  std::string kind;  // empty: compare all
  bool compare = false;
  ComputeScheduleSize size;
  double forward = 1.0;  // times of a rank's whole part of the model, one micro-batch
  double backward = 2.0;
  std::optional<double> weight;  // of the backward, the weights' half; default: half of it
  double transfer = 0.0;
  std::optional<double> max_live;     // of --compare
  std::optional<std::int64_t> width;  // default: the terminal's, or 120
  bool json = false;
  std::string svg;

  double weight_time() const { return weight ? *weight : backward / 2; }
  ScheduleCosts stage_costs() const { return {.forward = forward, .backward = backward, .transfer = transfer}; }
  // Of one of `num_chunks` chunks.
  ComputeCosts chunk_costs(std::int64_t num_chunks) const;
};

// The share of the time in which the busiest rank does nothing.
double bubble(double span, double ideal);

// --compare: a row for every schedule that these numbers allow, the fastest marked.
void print_comparison(const ScheduleArguments& options);

}  // namespace espalier::command
