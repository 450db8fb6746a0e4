// SPDX-License-Identifier: Apache-2.0
// The oracle itself, against LibTorch's optimizer and clipping on the whole batch at once.
#include "tests/support/reference_train.hpp"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <vector>

namespace espalier::testing_support {
namespace {

torch::nn::Sequential small_model() {
  at::manual_seed(5);
  torch::nn::Sequential model(torch::nn::Linear(6, 9), torch::nn::Tanh(), torch::nn::Linear(9, 4));
  model->to(at::kDouble);
  return model;
}

NamedTensors parameters_of(const torch::nn::Sequential& model) {
  NamedTensors named;
  for (const auto& item : model->named_parameters()) named[item.key()] = item.value();
  return named;
}

at::Tensor inputs(std::int64_t step) {
  return at::arange(step, step + 12 * 6, at::kDouble).mul(0.7).sin().reshape({12, 6});
}
at::Tensor targets(std::int64_t step) { return (at::arange(12, at::kLong) * 3 + step).remainder(4); }

double rate(std::int64_t step) { return 0.02 / static_cast<double>(step + 1); }

ReferenceResult train_reference(const torch::nn::Sequential& model, std::int64_t num_micro_batches, double max_norm) {
  std::vector<std::function<Tensors(const Tensors&)>> layers;
  for (const torch::nn::AnyModule& child : *model) {
    layers.push_back(
        [child = torch::nn::AnyModule(child)](const Tensors& x) mutable -> Tensors { return {child.forward(x[0])}; });
  }
  const auto loss = [](const Tensors& outputs, const Tensors& y) {
    return torch::nn::functional::cross_entropy(outputs[0], y[0]);
  };
  const auto micro_batches = [&](std::int64_t step) {
    std::vector<ReferenceMicroBatch> parts;
    const auto x = inputs(step).chunk(num_micro_batches);
    const auto y = targets(step).chunk(num_micro_batches);
    for (std::size_t i = 0; i < x.size(); ++i) parts.push_back({{x[i]}, {y[i]}});
    return parts;
  };
  return reference_train(parameters_of(model), in_sequence(layers, loss), micro_batches, 6,
                         {.lr = rate, .max_norm = max_norm});
}

class ReferenceTrain : public ::testing::TestWithParam<double> {};

TEST_P(ReferenceTrain, EqualsLibTorchOnTheWholeBatchForAnyNumberOfMicroBatches) {
  const double max_norm = GetParam();
  const auto model = small_model();
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(1.0).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
  std::vector<double> losses;
  std::vector<double> norms;
  NamedTensors first;
  for (std::int64_t step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(model.ptr()->forward(inputs(step)), targets(step));
    loss.backward();
    losses.push_back(loss.item<double>());
    if (step == 0) {
      for (const auto& [name, parameter] : parameters_of(model)) first[name] = parameter.grad().clone();
    }
    norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), max_norm > 0 ? max_norm : 1e300));
    for (auto& group : optimizer.param_groups()) group.options().set_lr(rate(step));
    optimizer.step();
  }
  const NamedTensors final_weights = parameters_of(model);

  for (const std::int64_t num_micro_batches : {1, 2, 3, 12}) {
    const auto result = train_reference(small_model(), num_micro_batches, max_norm);
    ASSERT_EQ(result.losses.size(), losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(result.losses[i], losses[i], 1e-12) << i;
      EXPECT_NEAR(result.norms[i], norms[i], 1e-12) << i;
    }
    for (const auto& [name, weight] : final_weights) {
      EXPECT_LT((result.first_gradients.at(name) - first.at(name)).abs().max().item<double>(), 1e-13) << name;
      EXPECT_LT((result.final_weights.at(name) - weight).abs().max().item<double>(), 1e-11) << name;
    }
  }
  EXPECT_GT(norms[0], 0.1);  // so that 0.1 clips
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutClipping, ReferenceTrain, ::testing::Values(0.0, 0.1));

TEST(ReferenceTrain, LeavesAParameterThatNothingReachesAlone) {
  const at::Tensor used = at::ones({2}, at::kDouble).requires_grad_();
  const at::Tensor unused = at::ones({2}, at::kDouble).requires_grad_();
  const auto result = reference_train(
      {{"used", used}, {"unused", unused}}, [&](const ReferenceMicroBatch&) { return used.sum(); },
      [](std::int64_t) { return std::vector<ReferenceMicroBatch>(2); }, 1, {.lr = rate});
  EXPECT_TRUE(at::equal(result.first_gradients.at("unused"), at::zeros({2}, at::kDouble)));
  EXPECT_TRUE(at::equal(result.final_weights.at("unused"), at::ones({2}, at::kDouble)));
  EXPECT_FALSE(at::equal(result.final_weights.at("used"), at::ones({2}, at::kDouble)));
}

}  // namespace
}  // namespace espalier::testing_support
