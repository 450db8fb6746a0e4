// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "espalier/sharding/parameter.hpp"
#include "espalier/train/optimizers/optimizer.hpp"

namespace espalier {

struct OnebitAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  std::int64_t freeze_step = 100;  // updates of plain Adam before the variance is frozen and the momentum compressed
  // As Adam has it, where DeepSpeed corrects nothing (false). The frozen variance keeps the correction of the freeze.
  bool bias_correction = true;
  // For parameters with elements that hardly ever get a gradient: a tensor of the parameter's shape that is 0 for
  // these, 1 for the others; undefined: all take part. From the freeze on the momentum of the zeros is zero. Every
  // element that shares a scale is sent as plus or minus that scale, which a frozen variance near zero would make a
  // huge update.
  std::function<at::Tensor(const Parameter& parameter)> momentum_mask = {};
  // Pad and scale as DeepSpeed does. The errors of padding are not kept in checkpoints.
  bool deepspeed_padding = false;
};

// AdamW for `freeze_step` updates; then each rank adds its own gradients to the momentum, and the momentum's mean over
// the replicas is taken by CompressedAllReduce. (Tang et al., "1-bit Adam", ICML 2021, algorithm 1) All parameters of a
// dtype and settings share a scale, but for tied ones: each has its own, so that it stays the same on all its stages. A
// single replica compresses nothing. State: exp_avg, exp_avg_sq; after the first compressed update worker_error (of each
// replica) and server_error. ConfigError for numbers that make no sense.
OptimizerFactory onebit_adam(const OnebitAdamOptions& options = {});

}  // namespace espalier
