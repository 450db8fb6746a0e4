// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace espalier {

// An optimizer over flat tensors: values and, as their .grad(), gradients of all parameters of one dtype side by side. It
// must work element by element, so that any cut of the parameters over ranks gives the same numbers.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One update of all tensors with learning rate `lr`.
  virtual void step(double lr) = 0;
  // The learning rate it was made with, used when the engine has no schedule.
  virtual double lr() const = 0;

  // Its state, for checkpoints: `names` says what there is for each element of a tensor ("exp_avg"); num_steps how often
  // it was stepped. State tensors have the shape of the values; before the first step they are zeros.
  virtual std::vector<std::string> names() const = 0;
  virtual at::Tensor state(std::size_t tensor, const std::string& name) = 0;
  virtual std::int64_t num_steps() const = 0;
  // Sets num_steps; the tensors returned by state() are then the ones to fill.
  virtual void restore(std::int64_t num_steps) = 0;
};

using OptimizerFactory = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor> values)>;

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

// torch::optim::AdamW. (Loshchilov and Hutter 2019) Others of LibTorch's: torch_optimizer.hpp.
OptimizerFactory adamw(const AdamWOptions& options = {});

}  // namespace espalier
