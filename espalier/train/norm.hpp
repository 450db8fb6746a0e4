// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <span>

#include "espalier/sharding/placement.hpp"

namespace espalier {

inline constexpr double kInfNorm = std::numeric_limits<double>::infinity();

// What this rank adds to a norm of order p over all ranks: sum of |x|^p (the largest |x| for kInfNorm), in float64,
// where it speaks for its copy of the parameter, 0 elsewhere. Infinity on any rank whose copy is not finite. Sum (or,
// for kInfNorm, take the maximum of) it over parameters and ranks, then norm_from_power.
double norm_power(const at::Tensor& tensor, const Placement& placement, std::span<const AxisCoordinate> rank, double p);
double norm_from_power(double power, double p);

// min(1, max_norm / (norm + 1e-6)): what gradients are multiplied with to be clipped. 1 for max_norm 0 ("do not clip").
double clip_scale(double norm, double max_norm);

}  // namespace espalier
