// SPDX-License-Identifier: Apache-2.0
#include "espalier/train/norm.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>

#include "espalier/base/check.hpp"

namespace espalier {

double norm_power(const at::Tensor& tensor, const Placement& placement, std::span<const AxisCoordinate> rank,
                  double p) {
  ESPALIER_CHECK_CONFIG(p > 0.0, "gradient norm: order {}; expected a number above 0 or kInfNorm", p);
  if (tensor.numel() == 0) return 0.0;
  const double norm =
      at::linalg_vector_norm(tensor, p, /*dim=*/c10::nullopt, /*keepdim=*/false, at::kDouble).item<double>();
  if (!std::isfinite(norm)) return kInfNorm;
  if (!is_counted(placement, rank)) return 0.0;
  return std::isinf(p) ? norm : std::pow(norm, p);
}

double norm_from_power(double power, double p) { return std::isinf(p) ? power : std::pow(power, 1.0 / p); }

double clip_scale(double norm, double max_norm) {
  return max_norm > 0.0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace espalier
