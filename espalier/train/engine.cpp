// SPDX-License-Identifier: Apache-2.0
// A step: zero gradients -> the schedule's instructions -> tied gradients summed over their stages -> all gradients
// averaged over data, unless the optimizer does that its own way -> global norm, clip, agreement on whether they are
// finite -> optimizer -> mean loss on every rank. The scale is in one place each: 1/micro_batches where the loss's
// backward starts, 1/data in the average.
#include "espalier/train/engine.hpp"

#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/parallel/data/average.hpp"
#include "espalier/plan/schedule/check.hpp"
#include "espalier/sharding/flat_buffer.hpp"
#include "espalier/train/checkpoint.hpp"
#include "espalier/train/norm.hpp"

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

double all_reduce_scalar(double value, const Group& group) {
  at::Tensor tensor = at::full({1}, value, at::kDouble);
  all_reduce_(tensor, group).wait();
  return tensor.item<double>();
}

std::vector<FlatParameters> flat_parameters(FlatBuffers& flat, std::span<const Parameter> parameters) {
  std::vector<FlatParameters> all;
  for (std::size_t i = 0; i < flat.buffers.size(); ++i) {
    all.push_back({.values = flat.buffers[i].values(), .parameters = {}});
    for (const std::size_t index : flat.indices[i]) all.back().parameters.push_back(parameters[index]);
  }
  return all;
}

// "layers.3.up.weight" is in layers.3.safetensors, "wte.weight" of a tied key in wte.safetensors; what replica 1 has of
// its own in layers.3.replica-1.safetensors.
std::string file_of(const std::string& name, std::optional<std::int64_t> replica) {
  const std::size_t from = name.starts_with("layers.") ? std::string_view("layers.").size() : 0;
  return name.substr(0, name.find('.', from)) + (replica ? fmt::format(".replica-{}", *replica) : "") + ".safetensors";
}

std::array<AxisCoordinate, 4> own_place(const Mesh& mesh) {
  return {{{"pipe", mesh.coordinate("pipe")},
           {"data", mesh.coordinate("data")},
           {"context", mesh.coordinate("context")},
           {"tensor", mesh.coordinate("tensor")}}};
}

// Of what every data rank has one of its own.
Placement on_each_replica(Placement placement) {
  placement.sharded_axes.insert(placement.sharded_axes.end(), {"data", "context"});
  return placement;
}

// ConfigError unless the schedule is sound and ends in an update.
void check_trains(const Schedule& schedule) {
  const ScheduleReport report = check(schedule);
  ESPALIER_CHECK_CONFIG(report.ok(), "engine: schedule {}: {}", schedule.name, report.errors.front());
  const bool updates = std::ranges::any_of(schedule.stages.front().steps, [](const auto& step) {
    return std::ranges::any_of(step,
                               [](const Instruction& instruction) { return instruction.op == Op::optimizer_step; });
  });
  ESPALIER_CHECK_CONFIG(
      updates, "engine: schedule {} never updates the weights; expected one that trains, such as 1f1b or gpipe",
      schedule.name);
}

}  // namespace

struct Engine::State {
  Mesh mesh;
  PipelineModule module;
  EngineOptions options;
  std::array<AxisCoordinate, 4> rank;  // this one's place on every axis
  Schedule train_schedule = {};
  FlatBuffers flat = {};
  std::unique_ptr<Optimizer> optimizer = {};
  std::int64_t step = 0;
  StepResult last = {};

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

// Each last-stage rank has the sum over its own micro-batches.
double Engine::State::mean_loss(double loss_sum, std::int64_t num_micro_batches) const {
  const Placement one_for_each_data_rank{.sharded_axes = {"data", "context"}, .stages = {module.num_stages() - 1}};
  const double mine = is_counted(one_for_each_data_rank, rank) ? loss_sum : 0.0;
  const auto num_losses = num_micro_batches * mesh.size("data") * mesh.size("context");
  return all_reduce_scalar(mine, mesh.world().group()) / static_cast<double>(num_losses);
}

void Engine::State::reduce_tied_grads() {
  std::vector<Work> works;
  for (const TiedGroup& tied : module.tied_groups()) {
    for (const std::size_t index : tied.parameters) {
      const at::Tensor& tensor = module.parameters()[index].tensor();
      if (tensor.requires_grad()) works.push_back(all_reduce_(tensor.mutable_grad(), tied.group));
    }
  }
  wait_all(works);
}

void Engine::State::reduce_grads() {
  last.averaging = {};
  last.averaging_fp32_bytes = 0;
  const Group& replicas = mesh.group("data_context");
  const auto begin = Clock::now();
  for (FlatBuffer& buffer : flat.buffers) {
    const std::int64_t elems = buffer.gradients().numel();
    last.averaging_fp32_bytes +=
        ring_all_reduce_bytes(elems * static_cast<std::int64_t>(sizeof(float)), replicas.size());
    if (optimizer->averages()) continue;
    average_in_buckets(buffer.gradients(), replicas, options.bucket_bytes);
    last.averaging.bytes_sent += ring_all_reduce_bytes(elems * buffer.gradients().element_size(), replicas.size());
  }
  last.averaging.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
}

// Gradients that were not averaged are others on every data rank, as those of a sharded parameter are.
double Engine::State::global_norm() {
  const bool averaged = !optimizer->averages();
  const std::int64_t replicas = averaged ? 1 : mesh.group("data_context").size();
  double power = 0.0;
  for (const Parameter& parameter : module.parameters()) {
    if (!parameter.tensor().requires_grad()) continue;
    const at::Tensor& gradient = parameter.tensor().grad();
    power += averaged ? norm_power(gradient, parameter.placement, rank, 2.0)
                      : norm_power(gradient, on_each_replica(parameter.placement), rank, 2.0);
  }
  return norm_from_power(all_reduce_scalar(power, mesh.world().group()) / static_cast<double>(replicas), 2.0);
}

void Engine::State::optimizer_step() {
  last.grad_norm = global_norm();
  last.skipped = !std::isfinite(last.grad_norm);
  last.lr = options.lr ? options.lr(step) : optimizer->lr();
  ++step;
  if (last.skipped) return;
  const double scale = clip_scale(last.grad_norm, options.max_grad_norm);
  for (FlatBuffer& buffer : flat.buffers) {
    if (scale != 1.0) buffer.gradients().mul_(scale);
  }
  const bool averages = optimizer->averages();
  const AveragingCost cost = optimizer->step(last.lr);
  if (averages) last.averaging = cost;
}

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
        const Placement placement = replica ? on_each_replica(parameter.placement) : parameter.placement;
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

Engine::Engine(const Mesh& mesh, const PipelineModule& module, const OptimizerFactory& optimizer,
               const EngineOptions& options)
    : state_(new State{.mesh = mesh, .module = module, .options = options, .rank = own_place(mesh)}) {
  ESPALIER_CHECK_CONFIG(options.loss != nullptr, "engine: no loss function; set EngineOptions::loss");
  ESPALIER_CHECK_CONFIG(options.micro_batches >= 1, "engine: {} micro-batches; expected at least 1",
                        options.micro_batches);
  ESPALIER_CHECK_CONFIG(std::isfinite(options.max_grad_norm) && options.max_grad_norm >= 0.0,
                        "engine: max_grad_norm is {}; expected a finite number >= 0 (0: do not clip)",
                        options.max_grad_norm);
  agree(mesh.world().group(), "engine",
        std::vector<std::string>{fmt::format("micro_batches={}", options.micro_batches),
                                 fmt::format("schedule={}", options.schedule.name),
                                 fmt::format("max_grad_norm={}", options.max_grad_norm),
                                 fmt::format("bucket_bytes={}", options.bucket_bytes)});
  state_->train_schedule = options.schedule.generate(module.num_stages(), options.micro_batches);
  check_trains(state_->train_schedule);
  FlatBuffer::MakeTensor in_shared_memory;  // what is averaged need not be copied there
  if (mesh.group("data_context").size() > 1) {
    in_shared_memory = [world = mesh.world()](at::IntArrayRef sizes, at::ScalarType dtype) {
      return world.host_buffer(sizes, dtype);
    };
  }
  state_->flat = make_flat_buffers(module.parameters(), in_shared_memory);
  state_->optimizer = optimizer(flat_parameters(state_->flat, module.parameters()), mesh.group("data_context"));
}

Engine::Engine(Engine&&) noexcept = default;
Engine::~Engine() = default;

StepResult Engine::train_batch(const MicroBatchSource& source) {
  State& self = *state_;
  for (FlatBuffer& buffer : self.flat.buffers) buffer.zero_gradients();
  const StepActions actions{.reduce_tied_grads = [&] { self.reduce_tied_grads(); },
                            .reduce_grads = [&] { self.reduce_grads(); },
                            .optimizer_step = [&] { self.optimizer_step(); }};
  const double loss_sum = execute(self.module, self.train_schedule, source, self.options.loss, actions);
  self.last.loss = self.mean_loss(loss_sum, self.options.micro_batches);
  return self.last;
}

double Engine::eval_batch(const MicroBatchSource& source, std::int64_t num_micro_batches) {
  State& self = *state_;
  ESPALIER_CHECK_CONFIG(num_micro_batches >= 1, "engine: evaluation over {} micro-batches; expected at least 1",
                        num_micro_batches);
  self.module.train(false);
  const Schedule schedule = forward_only().generate(self.module.num_stages(), num_micro_batches);
  const double loss_sum = execute(self.module, schedule, source, self.options.loss);
  self.module.train(true);
  return self.mean_loss(loss_sum, num_micro_batches);
}

std::int64_t Engine::step() const { return state_->step; }

std::int64_t Engine::num_parameters() const {
  const auto mine = static_cast<double>(counted_elems(state_->module.parameters(), state_->rank));
  return std::llround(all_reduce_scalar(mine, state_->mesh.world().group()));
}

const PipelineModule& Engine::module() const { return state_->module; }

void Engine::save(const std::string& folder) const {
  const Group& world = state_->mesh.world().group();
  const auto states = state_->optimizer_states();
  const Group& replicas = state_->mesh.group("data_context");
  auto tensors = state_->shared_tensors(states);
  const auto own = state_->replica_tensors(states, replicas.rank());
  tensors.insert(tensors.end(), own.begin(), own.end());
  const bool some_own = all_reduce_scalar(own.empty() ? 0.0 : 1.0, world) > 0.0;
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
