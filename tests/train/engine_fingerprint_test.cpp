// SPDX-License-Identifier: Apache-2.0
// Ranks that come with different runs, and the fingerprint over layouts.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <mutex>

#include "espalier/comm/run_ranks.hpp"
#include "espalier/train/engine.hpp"
#include "espalier/train/optimizers/onebit_adam.hpp"
#include "espalier/train/optimizers/torch_optimizer.hpp"
#include "tests/support/error_of.hpp"

namespace espalier {
namespace {

namespace engine_fingerprint {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor loss(const Tensors& outputs, const Tensors&) { return outputs[0].square().mean(); }

// What one rank brings.
struct Brought {
  std::int64_t width = 3;
  bool frozen = false;
  OptimizerFactory optimizer = adamw();
  EngineOptions options = {.loss = loss};
};

std::vector<LayerSpec> layers(std::int64_t width) {
  return {
      tied<nn::Embedding>("wte", 7, 4), layer<nn::Linear>(4, width), layer<nn::Tanh>(), layer<nn::Linear>(width, 4),
      tied_use<nn::Embedding>("wte", [](nn::EmbeddingImpl& e, const at::Tensor& x) { return x.matmul(e.weight.t()); })};
}

// The error when rank 3 of 2 stages x 2 data ranks comes with `other`, the others with `run`.
std::string refusal(const Brought& run, const Brought& other) {
  return testing_support::error_of([&] {
    run_ranks(4, [&](World& world) {
      const Brought& mine = world.rank() == 3 ? other : run;
      const Mesh mesh(world, {.pipe = 2, .data = 2});
      const PipelineModule module(mesh, layers(mine.width), {.partition = at_cuts({0, 3, 5})});
      if (mine.frozen) at::Tensor(module.parameters().back().tensor()).set_requires_grad(false);
      Engine(mesh, module, mine.optimizer, mine.options);
    });
  });
}

TEST(EngineFingerprint, RefusesRanksThatDifferInTheOptimizer) {
  using namespace torch::optim;
  const auto with = [](const OptimizerFactory& optimizer) { return Brought{.optimizer = optimizer}; };
  const auto expect = [&](const OptimizerFactory& a, const OptimizerFactory& b, const char* of_all, const char* of_3) {
    EXPECT_THAT(refusal(with(a), with(b)), AllOf(HasSubstr("engine: the ranks of group 'world' differ"),
                                                 HasSubstr(std::string("'optimizer") + of_all + "' on ranks 0,1,2"),
                                                 HasSubstr(std::string("'optimizer") + of_3 + "' on rank 3")));
  };
  expect(adamw({.lr = 1e-3}), adamw({.lr = 5e-2}), ".lr=0.001", ".lr=0.05");
  expect(adamw({.weight_decay = 0.1}), adamw({.weight_decay = 0}), ".weight_decay=0.1", ".weight_decay=0");
  expect(adamw(), torch_optimizer<Adam>(AdamOptions()), "=AdamW", "=Adam");
  expect(torch_optimizer<SGD>(SGDOptions(0.1)), torch_optimizer<SGD>(SGDOptions(0.1).momentum(0.9)), ".momentum=0",
         ".momentum=0.9");
  expect(torch_optimizer<RMSprop>(RMSpropOptions(0.1)), torch_optimizer<RMSprop>(RMSpropOptions(0.1).centered(true)),
         ".centered=false", ".centered=true");
  expect(torch_optimizer<Adagrad>(AdagradOptions(0.1)), torch_optimizer<Adagrad>(AdagradOptions(0.1).eps(1e-5)),
         ".eps=1e-10", ".eps=1e-05");
  expect(onebit_adam({.freeze_step = 5}), onebit_adam({.freeze_step = 6}), ".freeze_step=5", ".freeze_step=6");
}

TEST(EngineFingerprint, RefusesRanksThatDifferInTheirModel) {
  EXPECT_THAT(refusal({}, {.width = 5}), AllOf(HasSubstr("engine: the ranks of group 'data_context' differ"),
                                               HasSubstr("'parameter layers.3.weight=Float [4,3]' on rank 2"),
                                               HasSubstr("'parameter layers.3.weight=Float [4,5]' on rank 3")));
  EXPECT_THAT(refusal({}, {.frozen = true}), AllOf(HasSubstr("'parameter layers.3.bias=Float [4]' on rank 2"),
                                                   HasSubstr("'parameter layers.3.bias=Float [4] frozen' on rank 3")));
}

TEST(EngineFingerprint, RefusesRanksThatDifferInOptionsOrInFactsOfTheProgram) {
  EXPECT_THAT(refusal({}, {.options = {.loss = loss, .max_grad_norm = 0.5}}),
              AllOf(HasSubstr("'max_grad_norm=0' on ranks 0,1,2"), HasSubstr("'max_grad_norm=0.5' on rank 3")));
  EXPECT_THAT(refusal({}, {.options = {.schedule = gpipe(), .loss = loss}}),
              AllOf(HasSubstr("'schedule=1f1b' on ranks 0,1,2"), HasSubstr("'schedule=gpipe' on rank 3")));
  const auto with = [](const char* name, const char* value) {
    return Brought{.options = {.loss = loss, .facts = {{name, value}}}};
  };
  EXPECT_THAT(refusal(with("text", "10 bytes"), with("text", "11 bytes")),
              AllOf(HasSubstr("'text=10 bytes' on ranks 0,1,2"), HasSubstr("'text=11 bytes' on rank 3")));
  EXPECT_THAT(refusal({}, with("text", "11 bytes")), HasSubstr("'text=11 bytes' on rank 3"));
  EXPECT_THAT(refusal({}, with("seed", "9")), HasSubstr("seed is both '1234' and '9'"));
  EXPECT_EQ(refusal(with("text", "10 bytes"), with("text", "10 bytes")), "no error");
}

TEST(EngineFingerprint, RefusesOptionsOfOneRankOnAllRanksWithItsText) {
  EXPECT_THAT(refusal({}, {.options = {.micro_batches = 0, .loss = loss}}), HasSubstr("engine: 0 micro-batches"));
  EXPECT_THAT(refusal({}, {.options = {}}), HasSubstr("engine: no loss function"));
}

TEST(EngineFingerprint, IsTheSameInEveryLayoutButForWhatAResumeMayChange) {
  const auto of = [](const LayoutSpec& layout) {
    Fingerprint result;
    std::mutex mutex;
    run_ranks(layout.pipe * layout.data, [&](World& world) {
      const Mesh mesh(world, layout);
      const Engine engine(mesh, PipelineModule(mesh, layers(3), {.partition = by_layers()}), adamw(), {.loss = loss});
      const std::lock_guard lock(mutex);
      if (result.facts().empty()) result = engine.fingerprint();
      EXPECT_TRUE(std::ranges::equal(result.facts(), engine.fingerprint().facts()));
    });
    return result;
  };
  const Fingerprint one = of({});
  ASSERT_NE(one.find("parameter wte.weight"), nullptr);
  EXPECT_EQ(one.find("parameter wte.weight")->value, "Float [7,4]");
  EXPECT_EQ(one.find("layer 4")->value, "Embedding tied as 'wte'");
  EXPECT_EQ(one.find("optimizer")->value, "AdamW");
  EXPECT_EQ(one.find("seed")->value, "1234");
  for (const LayoutSpec& layout : {LayoutSpec{.pipe = 2, .data = 2}, LayoutSpec{.pipe = 5}, LayoutSpec{.data = 3}}) {
    const Fingerprint other = of(layout);
    EXPECT_TRUE(one.differences(other).empty());
    EXPECT_NE(one.find("layout")->value, other.find("layout")->value);
  }
}

}  // namespace engine_fingerprint

}  // namespace
}  // namespace espalier
