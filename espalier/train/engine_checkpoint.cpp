// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds: parameters and buffers, what the optimizer keeps alike on all data ranks, and what each has of
// its own. checkpoint.hpp writes and reads the files.
#include <algorithm>

#include "espalier/base/check.hpp"
#include "espalier/train/engine_state.hpp"

namespace espalier {
namespace {

// "layers.3.up.weight" is in layers.3.safetensors, "wte.weight" of a tied key in wte.safetensors; what replica 1 has of
// its own in layers.3.replica-1.safetensors.
std::string file_of(const std::string& name, std::optional<std::int64_t> replica) {
  const std::size_t from = name.starts_with("layers.") ? std::string_view("layers.").size() : 0;
  return name.substr(0, name.find('.', from)) + (replica ? fmt::format(".replica-{}", *replica) : "") + ".safetensors";
}

}  // namespace

Engine::State::OptimizerStates Engine::State::optimizer_states() {
  OptimizerStates states;
  for (std::size_t i = 0; i < flat.buffers.size(); ++i) states.push_back(optimizer->state(i));
  return states;
}

// Of the states that are alike on all replicas, or of those that `replica` has of its own.
void Engine::State::add_states(const OptimizerStates& states, std::optional<std::int64_t> replica,
                               std::vector<detail::CheckpointTensor>& tensors) const {
  for (std::size_t i = 0; i < states.size(); ++i) {
    for (const OptimizerState& state : states[i]) {
      if (state.of_each_replica != replica.has_value()) continue;
      for (std::size_t j = 0; j < flat.indices[i].size(); ++j) {
        const Parameter& parameter = module.parameters()[flat.indices[i][j]];
        const Placement placement = replica ? detail::on_each_replica(parameter.placement) : parameter.placement;
        tensors.push_back({file_of(parameter.name, replica), parameter.name + ":" + state.name,
                           flat.buffers[i].view(state.tensor, static_cast<std::int64_t>(j)),
                           is_counted(placement, rank)});
      }
    }
  }
}

// Everything this stage would save and has alike on all data ranks: parameters, buffers, and what the optimizer keeps.
std::vector<detail::CheckpointTensor> Engine::State::shared_tensors(const OptimizerStates& states) const {
  std::vector<detail::CheckpointTensor> tensors;
  for (const auto& all : {module.parameters(), module.buffers()}) {
    for (const Parameter& one : all)
      tensors.push_back({file_of(one.name, {}), one.name, one.tensor(), is_counted(one.placement, rank)});
  }
  add_states(states, {}, tensors);
  return tensors;
}

std::vector<detail::CheckpointTensor> Engine::State::replica_tensors(const OptimizerStates& states,
                                                                     std::int64_t replica) const {
  std::vector<detail::CheckpointTensor> tensors;
  add_states(states, replica, tensors);
  return tensors;
}

// Its own where as many replicas saved theirs; otherwise the mean, summed in float64.
void Engine::State::read_replica_states(const std::string& folder, const detail::CheckpointManifest& manifest,
                                        const OptimizerStates& states) const {
  const Group& replicas = mesh.group("data_context");
  const auto read = [&](std::int64_t replica) {
    auto tensors = replica_tensors(states, replica);
    detail::read_checkpoint(folder, manifest, tensors, mesh.world().group());
    return tensors;
  };
  if (manifest.replicas == replicas.size()) {
    read(replicas.rank());
    return;
  }
  std::vector<at::Tensor> sums;
  for (std::int64_t replica = 0; replica < manifest.replicas; ++replica) {
    const auto tensors = read(replica);
    if (replica == 0) {
      for (const auto& one : tensors) sums.push_back(one.tensor.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true));
    } else {
      for (std::size_t i = 0; i < tensors.size(); ++i) sums[i].add_(tensors[i].tensor);
    }
    if (replica + 1 < manifest.replicas) continue;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      at::Tensor(tensors[i].tensor).copy_(sums[i].div_(manifest.replicas));
  }
}

void Engine::save(const std::string& folder) const {
  const Group& world = state_->mesh.world().group();
  const auto states = state_->optimizer_states();
  const Group& replicas = state_->mesh.group("data_context");
  auto tensors = state_->shared_tensors(states);
  const auto own = state_->replica_tensors(states, replicas.rank());
  tensors.insert(tensors.end(), own.begin(), own.end());
  const bool some_own = detail::all_reduce_scalar(own.empty() ? 0.0 : 1.0, world) > 0.0;
  const detail::CheckpointManifest manifest{state_->step, state_->optimizer->num_steps(), num_parameters(),
                                            some_own ? replicas.size() : 0};
  detail::write_checkpoint(folder, manifest, tensors, world);
}

bool Engine::resume(const std::string& folder) {
  const Group& world = state_->mesh.world().group();
  const auto manifest = detail::read_manifest(folder, world);
  if (!manifest) return false;
  const std::int64_t parameters = num_parameters();
  ESPALIER_CHECK_CONFIG(
      manifest->num_parameters == parameters,
      "checkpoint: the model in {} has {} parameters, this one {}; resume with the model it was saved from", folder,
      manifest->num_parameters, parameters);
  state_->optimizer->restore(manifest->optimizer_steps);
  const auto states = state_->optimizer_states();
  auto saved = states;
  for (auto& of_one : saved)
    std::erase_if(of_one, [&](const auto& state) { return state.with_replicas && manifest->replicas == 0; });
  auto tensors = state_->shared_tensors(saved);
  detail::read_checkpoint(folder, *manifest, tensors, world);
  if (manifest->replicas > 0) state_->read_replica_states(folder, *manifest, states);
  for (std::size_t i = 0; i < states.size(); ++i) state_->optimizer->restored(i, states[i]);
  state_->module.synchronize_tied();
  state_->step = manifest->step;
  return true;
}

}  // namespace espalier
