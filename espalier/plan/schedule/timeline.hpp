// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/plan/schedule/compute_simulation.hpp"
#include "espalier/plan/schedule/simulate.hpp"

namespace espalier {

// What is drawn of a simulation: for each row, bars that do not overlap, in order.
struct Timeline {
  enum class Look : std::uint8_t { forward, backward, backward_input, backward_weight };
  struct Bar {
    std::string label;  // "F3"
    std::string what;   // "forward of micro-batch 3"
    Look look;
    double begin = 0.0;
    double end = 0.0;
  };
  std::string row_name;  // "stage": rows are stage 0, stage 1, ...
  std::vector<std::vector<Bar>> rows;
  double span = 0.0;   // from the first begin to the last end
  double ideal = 0.0;  // of it, what the busiest row works
};

Timeline timeline(const Simulation& simulation);
Timeline timeline(const ComputeSimulation& simulation);

}  // namespace espalier
