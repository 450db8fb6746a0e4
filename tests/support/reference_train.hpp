// SPDX-License-Identifier: Apache-2.0
// Training as one process does it, in plain LibTorch: the oracle for every parallel layout. Shares
// no code with the library.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace espalier::testing_support {

using Tensors = std::vector<at::Tensor>;
using NamedTensors = std::map<std::string, at::Tensor>;

struct ReferenceMicroBatch {
  Tensors inputs;
  Tensors targets;
};

// The mean loss of one micro-batch, a scalar with a graph.
using ReferenceForward = std::function<at::Tensor(const ReferenceMicroBatch&)>;

// Runs `layers` one after another and hands what comes out, with the targets, to `loss`.
ReferenceForward in_sequence(std::vector<std::function<Tensors(const Tensors&)>> layers,
                             std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)> loss);

// AdamW (Loshchilov and Hutter 2019) in the order of operations of torch::optim::AdamW.
struct ReferenceOptions {
  std::function<double(std::int64_t step)> lr;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double max_norm = 0.0;  // gradients are scaled by min(1, max_norm / (norm + 1e-6)); 0: not at all
};

struct ReferenceResult {
  std::vector<double> losses;    // of each step: mean of the micro-batches' losses, before its update
  std::vector<double> norms;     // of each step: 2-norm of all gradients together, before clipping
  NamedTensors first_gradients;  // of step 0, before clipping; zeros where nothing reached a parameter
  NamedTensors final_weights;
};

// Trains `parameters` (leaves that require grad, each distinct one under one name) in place.
// `micro_batches(step)` are all micro-batches of the step, of all data ranks, in order; the step's
// gradient is the mean of theirs.
ReferenceResult reference_train(const NamedTensors& parameters, const ReferenceForward& forward,
                                const std::function<std::vector<ReferenceMicroBatch>(std::int64_t step)>& micro_batches,
                                std::int64_t num_steps, const ReferenceOptions& options);

}  // namespace espalier::testing_support
