// SPDX-License-Identifier: Apache-2.0
#include "espalier/sharding/parameter.hpp"

namespace espalier {

std::int64_t counted_elems(std::span<const Parameter> parameters, std::span<const AxisCoordinate> rank) {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters) {
    if (is_counted(parameter.placement, rank)) total += parameter.tensor().numel();
  }
  return total;
}

}  // namespace espalier
