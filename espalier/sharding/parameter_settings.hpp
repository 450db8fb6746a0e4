// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "espalier/sharding/parameter.hpp"

namespace espalier {

// How one parameter is trained, against what the optimizer says for all.
struct ParameterSettings {
  double lr_scale = 1.0;            // times the step's learning rate
  double weight_decay_scale = 1.0;  // times the optimizer's weight decay

  friend bool operator==(const ParameterSettings&, const ParameterSettings&) = default;
};

// The settings of a parameter, by its name and tensor; the same on every rank that holds it. Unset: all are trained
// alike.
using ParameterRule = std::function<ParameterSettings(const Parameter& parameter)>;

// A rule: weight decay for tensors of two and more dimensions alone, so neither for biases nor for norms.
inline ParameterSettings decay_matrices_only(const Parameter& parameter) {
  return {.weight_decay_scale = parameter.tensor().dim() >= 2 ? 1.0 : 0.0};
}

}  // namespace espalier
