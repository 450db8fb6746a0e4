// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

namespace espalier {

inline constexpr double kInfNorm = std::numeric_limits<double>::infinity();

// What one rank adds to a norm of order p over many ranks: sum of |x|^p (the largest |x| for kInfNorm), in float64. Sum (or
// take the maximum of) it over ranks, counting each distinct element once (is_counted), then norm_from_power.
double norm_power(const at::Tensor& tensor, double p);
double norm_from_power(double power, double p);

// min(1, max_norm / (norm + 1e-6)): what gradients are multiplied with to be clipped. 1 for max_norm 0 ("do not clip").
double clip_scale(double norm, double max_norm);

}  // namespace espalier
