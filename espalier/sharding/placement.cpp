// SPDX-License-Identifier: Apache-2.0
#include "espalier/sharding/placement.hpp"

#include <algorithm>

namespace espalier {

bool is_counted(const Placement& placement, std::span<const AxisCoordinate> rank) {
  return std::ranges::all_of(rank, [&](const AxisCoordinate& at) {
    if (at.axis == "pipe") return at.coordinate == placement.stages.front();
    const bool sharded = std::ranges::find(placement.sharded_axes, at.axis) != placement.sharded_axes.end();
    return sharded || at.coordinate == 0;
  });
}

}  // namespace espalier
