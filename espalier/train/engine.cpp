// SPDX-License-Identifier: Apache-2.0
// A step: zero gradients -> the schedule's instructions -> tied gradients summed over their stages -> all gradients
// averaged over data, unless the optimizer does that its own way -> global norm, clip, agreement on whether they are
// finite -> optimizer -> mean loss on every rank. The scale is in one place each: 1/micro_batches where the loss's
// backward starts, 1/data in the average.
#include "espalier/train/engine.hpp"

#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/together.hpp"
#include "espalier/parallel/data/average.hpp"
#include "espalier/plan/schedule/check.hpp"
#include "espalier/train/engine_state.hpp"
#include "espalier/train/norm.hpp"

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<FlatParameters> flat_parameters(FlatBuffers& flat, std::span<const Parameter> parameters) {
  std::vector<FlatParameters> all;
  for (std::size_t i = 0; i < flat.buffers.size(); ++i) {
    all.push_back({.values = flat.buffers[i].values(), .parameters = {}, .settings = flat.settings[i]});
    for (const std::size_t index : flat.indices[i]) all.back().parameters.push_back(parameters[index]);
  }
  return all;
}

std::array<AxisCoordinate, 4> own_place(const Mesh& mesh) {
  return {{{"pipe", mesh.coordinate("pipe")},
           {"data", mesh.coordinate("data")},
           {"context", mesh.coordinate("context")},
           {"tensor", mesh.coordinate("tensor")}}};
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

void check_options(const EngineOptions& options) {
  ESPALIER_CHECK_CONFIG(options.loss != nullptr, "engine: no loss function; set EngineOptions::loss");
  ESPALIER_CHECK_CONFIG(options.micro_batches >= 1, "engine: {} micro-batches; expected at least 1",
                        options.micro_batches);
  ESPALIER_CHECK_CONFIG(std::isfinite(options.max_grad_norm) && options.max_grad_norm >= 0.0,
                        "engine: max_grad_norm is {}; expected a finite number >= 0 (0: do not clip)",
                        options.max_grad_norm);
  ESPALIER_CHECK_CONFIG(options.bucket_bytes >= 1, "engine: bucket_bytes is {}; expected at least 1",
                        options.bucket_bytes);
}

}  // namespace

double detail::all_reduce_scalar(double value, const Group& group) {
  at::Tensor tensor = at::full({1}, value, at::kDouble);
  all_reduce_(tensor, group).wait();
  return tensor.item<double>();
}

Placement detail::on_each_replica(Placement placement) {
  placement.sharded_axes.insert(placement.sharded_axes.end(), {"data", "context"});
  return placement;
}

// Each last-stage rank has the sum over its own micro-batches.
double Engine::State::mean_loss(double loss_sum, std::int64_t num_micro_batches) const {
  const Placement one_for_each_data_rank{.sharded_axes = {"data", "context"}, .stages = {module.num_stages() - 1}};
  const double mine = is_counted(one_for_each_data_rank, rank) ? loss_sum : 0.0;
  const auto num_losses = num_micro_batches * mesh.size("data") * mesh.size("context");
  return detail::all_reduce_scalar(mine, mesh.world().group()) / static_cast<double>(num_losses);
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
                      : norm_power(gradient, detail::on_each_replica(parameter.placement), rank, 2.0);
  }
  return norm_from_power(detail::all_reduce_scalar(power, mesh.world().group()) / static_cast<double>(replicas), 2.0);
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

Engine::Engine(const Mesh& mesh, const PipelineModule& module, const OptimizerFactory& optimizer,
               const EngineOptions& options)
    : state_(new State{.mesh = mesh, .module = module, .options = options, .rank = own_place(mesh)}) {
  const Group& world = mesh.world().group();
  detail::together(world, [&] { check_options(options); });
  // Before the schedule is made: that of other options may be one that cannot be.
  agree(world, "engine",
        std::vector<std::string>{fmt::format("micro_batches={}", options.micro_batches),
                                 fmt::format("schedule={}", options.schedule.name)});
  state_->train_schedule = options.schedule.generate(module.num_stages(), options.micro_batches);
  check_trains(state_->train_schedule);
  FlatBuffer::MakeTensor in_shared_memory;  // what is averaged need not be copied there
  if (mesh.group("data_context").size() > 1) {
    in_shared_memory = [world = mesh.world()](at::IntArrayRef sizes, at::ScalarType dtype) {
      return world.host_buffer(sizes, dtype);
    };
  }
  state_->flat = make_flat_buffers(module.parameters(), options.parameter_settings, in_shared_memory);
  state_->optimizer = detail::together(
      world, [&] { return optimizer(flat_parameters(state_->flat, module.parameters()), mesh.group("data_context")); });
  state_->agree_on_fingerprint();
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
  return std::llround(detail::all_reduce_scalar(mine, state_->mesh.world().group()));
}

const Fingerprint& Engine::fingerprint() const { return state_->fingerprint; }

const PipelineModule& Engine::module() const { return state_->module; }

}  // namespace espalier
