// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "espalier/plan/schedule/compute_schedule.hpp"

namespace espalier {

// Times of one chunk and micro-batch, in one unit of the caller's choice.
struct ComputeCosts {
  double forward = 1.0;
  double backward = 2.0;
  double backward_input = 1.0;
  double backward_weight = 1.0;
  double transfer = 0.0;  // from one rank to another
};

struct ComputeInterval {
  ComputeStep step;
  double begin = 0.0;
  double end = 0.0;
};

struct ComputeSimulation {
  std::vector<std::vector<ComputeInterval>> ranks;  // in order
  std::vector<double> bubbles;  // of each rank: its idle time between its first start and its last end
  double span = 0.0;            // from the first start to the last end of all
  double ideal = 0.0;           // what the busiest rank computes
};

// Plays the schedule: each rank takes its steps in order, each as soon as what it needs is there. ConfigError if the
// schedule does not check, and for times that are not finite or below 0.
ComputeSimulation simulate(const ComputeSchedule& schedule, const ComputeCosts& costs);

}  // namespace espalier
