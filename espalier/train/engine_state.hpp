// SPDX-License-Identifier: Apache-2.0
// Private. What an engine holds: engine.cpp trains with it, engine_checkpoint.cpp saves and resumes it,
// engine_fingerprint.cpp says what it is made of.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "espalier/sharding/flat_buffer.hpp"
#include "espalier/train/checkpoint.hpp"
#include "espalier/train/engine.hpp"

namespace espalier {

namespace detail {

// The sum over the group. All members must call; blocks.
double all_reduce_scalar(double value, const Group& group);

// Of what every data rank has one of its own.
Placement on_each_replica(Placement placement);

}  // namespace detail

struct Engine::State {
  Mesh mesh;
  PipelineModule module;
  EngineOptions options;
  std::array<AxisCoordinate, 4> rank;  // this one's place on every axis
  Schedule train_schedule = {};
  FlatBuffers flat = {};
  std::unique_ptr<Optimizer> optimizer = {};
  Fingerprint fingerprint = {};
  std::int64_t step = 0;
  StepResult last = {};

  void agree_on_fingerprint();  // makes it; collective over the world

  double mean_loss(double loss_sum, std::int64_t num_micro_batches) const;
  void reduce_tied_grads();
  void reduce_grads();
  double global_norm();
  void optimizer_step();

  // What the optimizer keeps for each flat buffer.
  using OptimizerStates = std::vector<std::vector<OptimizerState>>;
  OptimizerStates optimizer_states();
  void add_states(const OptimizerStates& states, std::optional<std::int64_t> replica,
                  std::vector<detail::CheckpointTensor>& tensors) const;
  std::vector<detail::CheckpointTensor> shared_tensors(const OptimizerStates& states) const;
  std::vector<detail::CheckpointTensor> replica_tensors(const OptimizerStates& states, std::int64_t replica) const;
  void read_replica_states(const std::string& folder, const detail::CheckpointManifest& manifest,
                           const OptimizerStates& states) const;
};

}  // namespace espalier
