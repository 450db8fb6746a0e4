// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "espalier/comm/group.hpp"
#include "espalier/sharding/parameter.hpp"
#include "espalier/sharding/parameter_settings.hpp"
#include "espalier/train/fingerprint.hpp"

namespace espalier {

// Trainable parameters of one dtype that are trained alike, on this rank.
struct FlatParameters {
  at::Tensor values;                  // 1-d, one parameter after the other; its .grad() are their gradients
  std::vector<Parameter> parameters;  // in this order
  ParameterSettings settings = {};
};

// What an optimizer keeps for each element of a flat tensor.
struct OptimizerState {
  std::string name;              // "exp_avg"
  at::Tensor tensor;             // of the length of the values
  bool of_each_replica = false;  // every replica has its own numbers; otherwise they are alike
  bool with_replicas = false;    // alike, but in a checkpoint only where state of each replica is
};

// What a step's averaging over the replicas cost this rank.
struct AveragingCost {
  double seconds = 0.0;         // waiting for others included
  std::int64_t bytes_sent = 0;  // an exact mean counts as what a ring all-reduce sends
};

// An optimizer over flat tensors. Its *replicas*, the members of the group that it was made with, hold the same values.
// It must work element by element, so that any cut of the parameters over ranks gives the same numbers (what averages()
// does may depend on the cut).
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One update of all tensors with learning rate `lr`. Where averages(), all replicas must call, and it blocks;
  // otherwise it costs no averaging.
  virtual AveragingCost step(double lr) = 0;
  // Its name and all that it was set to, for the fingerprint of the run: {"optimizer", "AdamW"}, {"optimizer.lr",
  // "0.001"}, ... The same on every rank, whatever parameters it holds.
  virtual std::vector<Fact> facts() const = 0;
  // The learning rate it was made with, used when the engine has no schedule.
  virtual double lr() const = 0;
  // Whether the next step takes this rank's own gradients instead of their mean over the replicas.
  virtual bool averages() const { return false; }

  // Its state, for checkpoints; before the first step it is zero. All replicas must call; blocks where they share
  // state.
  virtual std::vector<OptimizerState> state(std::size_t tensor) = 0;
  virtual std::int64_t num_steps() const = 0;  // how often it was stepped

  // The two halves of taking state over: restore() sets num_steps, then the tensors that state() returns are filled and
  // given to restored(). State of each replica becomes the mean over the former ones where there were not as many, and
  // stays zero where the former ones had none.
  virtual void restore(std::int64_t num_steps) = 0;
  virtual void restored(std::size_t /*tensor*/, std::span<const OptimizerState> /*filled*/) {}
};

using OptimizerFactory =
    std::function<std::unique_ptr<Optimizer>(std::vector<FlatParameters> flat, const Group& replicas)>;

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
