// SPDX-License-Identifier: Apache-2.0
#include "espalier/autograd/recompute.hpp"

#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace espalier {
namespace {

struct Net {
  Net() {
    at::manual_seed(3);
    first = torch::nn::Linear(8, 16);
    second = torch::nn::Linear(16, 8);
  }
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) {
    ++calls;
    return {second->forward(first->forward(inputs[0]).tanh()) + inputs[0]};
  }
  std::vector<at::Tensor> gradients() const {
    return {first->weight.grad(), first->bias.grad(), second->weight.grad()};
  }

  torch::nn::Linear first{nullptr}, second{nullptr};
  int calls = 0;
};

TEST(Recompute, GivesTheGradientsOfAPlainCallBitForBit) {
  Net plain, again;
  const at::Tensor input = at::randn({4, 8});
  at::Tensor a = input.clone().requires_grad_(), b = input.clone().requires_grad_();
  const at::Tensor plain_output = plain({a})[0];
  const at::Tensor output = recompute([&](const auto& inputs) { return again(inputs); }, {b})[0];
  EXPECT_TRUE(at::equal(output, plain_output));
  plain_output.square().sum().backward();
  output.square().sum().backward();
  EXPECT_EQ(again.calls, 2);
  EXPECT_TRUE(at::equal(a.grad(), b.grad()));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(plain.gradients()[i], again.gradients()[i]));
}

TEST(Recompute, ReachesParametersWhenNoInputNeedsAGradient) {
  torch::nn::Embedding plain(10, 4);
  auto again = std::dynamic_pointer_cast<torch::nn::EmbeddingImpl>(plain->clone());
  const at::Tensor tokens = at::tensor({1, 2, 2, 9});
  plain->forward(tokens).square().sum().backward();
  recompute([&](const auto& inputs) { return std::vector<at::Tensor>{again->forward(inputs[0])}; }, {tokens})[0]
      .square()
      .sum()
      .backward();
  EXPECT_TRUE(at::equal(plain->weight.grad(), again->weight.grad()));
}

TEST(Recompute, LeavesAnInputThatIsHandedThroughAlone) {
  Net net;
  at::Tensor input = at::randn({4, 8}), mask = at::ones({4, 8}), kinds = at::zeros({4}, at::kLong);
  const auto outputs = recompute(
      [&](const auto& inputs) { return std::vector<at::Tensor>{net(inputs)[0] * inputs[1], inputs[1], inputs[2]}; },
      {input, mask, kinds});
  EXPECT_FALSE(mask.requires_grad());
  EXPECT_TRUE(at::equal(outputs[2], kinds));
  outputs[0].sum().backward();
  EXPECT_TRUE(net.first->weight.grad().defined());
}

TEST(Recompute, IsAPlainCallWithoutGradMode) {
  Net net;
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(recompute([&](const auto& inputs) { return net(inputs); }, {at::randn({4, 8})})[0].requires_grad());
  EXPECT_EQ(net.calls, 1);
}

}  // namespace
}  // namespace espalier
