// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/plan/layout/grid.hpp"

namespace espalier {

// Where the copies and parts of one parameter live. Gradient means, norms, parameter counts and checkpoints all follow
// from it, each by one rule.
struct Placement {
  // Axes along which every rank holds a different part of the whole tensor. All others but "pipe" hold copies.
  std::vector<std::string> sharded_axes = {};
  // Pipeline stages that hold a copy, ascending. More than one: the parameter is tied; the first one owns it.
  std::vector<std::int64_t> stages = {0};

  bool tied() const { return stages.size() > 1; }
};

// Whether the rank at these coordinates (one entry for each axis of the grid) speaks for its copy of the parameter:
// true on exactly one rank for each distinct part. Sums over all ranks of what counted ranks hold see each element
// once.
bool is_counted(const Placement& placement, std::span<const AxisCoordinate> rank);

}  // namespace espalier
