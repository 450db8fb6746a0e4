// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/sharding/placement.hpp"

namespace espalier {

// One parameter of the model as this rank holds it. Its name is the same in every layout: "layers.3.up.weight", or
// "wte.weight" for a tied layer with key wte.
struct Parameter {
  std::string name;
  // The module's own tensors: one, or several where a tied layer is used more than once on this stage. All share
  // storage, and in a flat buffer their gradient too.
  std::vector<at::Tensor> uses;
  Placement placement;

  const at::Tensor& tensor() const { return uses.front(); }
};

// Number of elements of all parameters, each distinct one counted once, as seen by this rank (sum it over all ranks).
std::int64_t counted_elems(std::span<const Parameter> parameters, std::span<const AxisCoordinate> rank);

}  // namespace espalier
