// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/plan/schedule/instruction.hpp"

namespace espalier {

// Times in one unit of the caller's choice.
struct ScheduleCosts {
  double forward = 1.0;  // of a whole stage, one micro-batch
  double backward = 2.0;
  double transfer = 0.0;  // one activation or gradient over one link
};

struct Interval {
  Instruction instruction;
  double begin = 0.0;
  double end = 0.0;
};

struct Simulation {
  std::vector<std::vector<Interval>> stages;  // forwards and backwards of each stage, in order
  double span = 0.0;                          // from first start to last end
  double ideal = 0.0;                         // span without any bubble: busiest stage's work
};

// Plays the schedule with buffered sends (a send never waits). ConfigError if the schedule does not
// check.
Simulation simulate(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace espalier
