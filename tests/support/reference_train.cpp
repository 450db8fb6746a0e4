// SPDX-License-Identifier: Apache-2.0
#include "tests/support/reference_train.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace espalier::testing_support {
namespace {

double accumulate_gradients(const NamedTensors& parameters, const ReferenceForward& forward,
                            const std::vector<ReferenceMicroBatch>& micro_batches) {
  for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
  const auto count = static_cast<double>(micro_batches.size());
  double sum = 0.0;
  for (const ReferenceMicroBatch& micro_batch : micro_batches) {
    const at::Tensor loss = forward(micro_batch);
    (loss / count).backward();
    sum += loss.item<double>();
  }
  return sum / count;
}

double global_norm(const NamedTensors& parameters) {
  double sum = 0.0;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) sum += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

class AdamW {
 public:
  explicit AdamW(const ReferenceOptions& options) : options_(options) {}

  void step(const NamedTensors& parameters, double lr) {
    ++num_steps_;
    const double correction1 = 1.0 - std::pow(options_.beta1, num_steps_);
    const double correction2 = 1.0 - std::pow(options_.beta2, num_steps_);
    for (const auto& [name, parameter] : parameters) {
      const at::Tensor& grad = parameter.grad();
      if (!grad.defined()) continue;
      auto [entry, added] = moments_.try_emplace(name);
      if (added) entry->second = {at::zeros_like(parameter), at::zeros_like(parameter)};
      auto& [mean, square] = entry->second;
      at::Tensor weight = parameter;
      weight.mul_(1.0 - lr * options_.weight_decay);
      mean.mul_(options_.beta1).add_(grad, 1.0 - options_.beta1);
      square.mul_(options_.beta2).addcmul_(grad, grad, 1.0 - options_.beta2);
      const at::Tensor denominator = (square.sqrt() / std::sqrt(correction2)).add_(options_.eps);
      weight.addcdiv_(mean, denominator, -lr / correction1);
    }
  }

 private:
  struct Moments {
    at::Tensor mean, square;
  };

  ReferenceOptions options_;
  int num_steps_ = 0;
  std::map<std::string, Moments> moments_;
};

}  // namespace

ReferenceForward in_sequence(std::vector<std::function<Tensors(const Tensors&)>> layers,
                             std::function<at::Tensor(const Tensors&, const Tensors&)> loss) {
  return [layers = std::move(layers), loss = std::move(loss)](const ReferenceMicroBatch& micro_batch) {
    Tensors tensors = micro_batch.inputs;
    for (const auto& layer : layers) tensors = layer(tensors);
    return loss(tensors, micro_batch.targets);
  };
}

ReferenceResult reference_train(const NamedTensors& parameters, const ReferenceForward& forward,
                                const std::function<std::vector<ReferenceMicroBatch>(std::int64_t)>& micro_batches,
                                std::int64_t num_steps, const ReferenceOptions& options) {
  ReferenceResult result;
  AdamW optimizer(options);
  for (std::int64_t step = 0; step < num_steps; ++step) {
    result.losses.push_back(accumulate_gradients(parameters, forward, micro_batches(step)));
    const double norm = global_norm(parameters);
    result.norms.push_back(norm);
    at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : parameters) {
      const at::Tensor& grad = parameter.grad();
      if (step == 0) result.first_gradients[name] = grad.defined() ? grad.clone() : at::zeros_like(parameter);
      if (options.max_norm > 0.0 && grad.defined()) grad.mul_(std::min(1.0, options.max_norm / (norm + 1e-6)));
    }
    optimizer.step(parameters, options.lr(step));
  }
  for (const auto& [name, parameter] : parameters) result.final_weights[name] = parameter.detach().clone();
  return result;
}

}  // namespace espalier::testing_support
