// SPDX-License-Identifier: Apache-2.0
// Building, naming, tying and running layers over stages.
#include "espalier/parallel/pipeline/pipeline_module.hpp"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <mutex>

#include "espalier/comm/run_ranks.hpp"
#include "espalier/parallel/pipeline/executor.hpp"
#include "espalier/plan/schedule/schedules.hpp"
#include "tests/support/error_of.hpp"

namespace espalier {
namespace {

using at::Tensor;
using espalier::testing_support::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace nn = torch::nn;

std::vector<LayerSpec> embedding_and_head() {
  return {tied<nn::Embedding>("wte", 11, 4), layer<nn::Linear>(4, 4), layer<nn::Linear>(4, 4),
          tied_use<nn::Embedding>("wte", [](nn::EmbeddingImpl& e, const Tensor& x) { return x.matmul(e.weight.t()); })};
}

std::map<std::string, Tensor> weights_over(std::int64_t pipe, const std::vector<LayerSpec>& layers,
                                           PipelineOptions options = {}) {
  std::map<std::string, Tensor> weights;
  std::mutex mutex;
  options.partition = by_layers();
  run_ranks(pipe, [&](World& world) {
    const PipelineModule module(Mesh(world, {.pipe = pipe}), layers, options);
    const std::lock_guard lock(mutex);
    for (const Parameter& parameter : module.parameters()) {
      const auto [at, inserted] = weights.emplace(parameter.name, parameter.tensor().detach().clone());
      if (!inserted) {
        EXPECT_TRUE(at::equal(at->second, parameter.tensor())) << parameter.name;
      }
    }
  });
  return weights;
}

TEST(PipelineModule, GivesWeightsThatDependOnSeedAndLayerAlone) {
  const auto one = weights_over(1, embedding_and_head());
  EXPECT_EQ(one.size(), 5u);  // wte.weight, and weight and bias of layers 1 and 2
  EXPECT_TRUE(one.contains("wte.weight") && one.contains("layers.2.bias"));
  for (const std::int64_t pipe : {2, 3, 4}) {
    const auto many = weights_over(pipe, embedding_and_head());
    ASSERT_EQ(many.size(), one.size());
    for (const auto& [name, tensor] : one) EXPECT_TRUE(at::equal(tensor, many.at(name))) << name;
  }
  EXPECT_FALSE(at::equal(one.at("layers.1.weight"), one.at("layers.2.weight")));
  EXPECT_FALSE(
      at::equal(one.at("layers.1.weight"), weights_over(1, embedding_and_head(), {.seed = 5}).at("layers.1.weight")));
}

TEST(PipelineModule, LeavesLibTorchsGeneratorAsItWas) {
  at::manual_seed(17);
  const Tensor expected = at::rand({3});
  at::manual_seed(17);
  weights_over(1, embedding_and_head());
  EXPECT_TRUE(at::equal(at::rand({3}), expected));
}

TEST(PipelineModule, CallsTheUsersSeedingFunctionBeforeEachLayer) {
  std::vector<std::uint64_t> seeds;
  weights_over(1, embedding_and_head(), {.seed_function = [&](std::uint64_t seed) { seeds.push_back(seed); }});
  EXPECT_EQ(seeds.size(), 3u);
}

TEST(PipelineModule, TiesOnlyTheNamedAttributes) {
  std::vector<LayerSpec> layers{
      tied<nn::Linear>("shared", 4, 4),
      tied_use<nn::Linear>("shared", [](nn::LinearImpl& l, const Tensor& x) { return l.forward(x); })};
  layers[0].attributes = {"weight"};
  const auto weights = weights_over(2, layers);
  EXPECT_EQ(weights.size(), 3u);
  EXPECT_TRUE(weights.contains("shared.weight") && weights.contains("layers.0.bias") &&
              weights.contains("layers.1.bias"));
  layers[0].attributes = {"wieght"};
  EXPECT_THAT(error_of([&] { weights_over(1, layers); }), HasSubstr("'wieght', but Linear has weight, bias"));
}

TEST(PipelineModule, SharesATiedKeyThatOneStageUsesTwice) {
  run_ranks(1, [](World& world) {
    const PipelineModule module(Mesh(world, {}), embedding_and_head());
    const Parameter& wte = module.parameters()[0];
    EXPECT_EQ(wte.name, "wte.weight");
    EXPECT_EQ(wte.uses.size(), 1u);  // one module serves both uses
    module.forward({at::tensor({1, 2})})[0].sum().backward();
    EXPECT_TRUE(wte.tensor().grad().defined());
  });
}

TEST(PipelineModule, RefusesMoreStagesThanLayers) {
  EXPECT_THAT(error_of([] { weights_over(5, embedding_and_head()); }), HasSubstr("5 stages but only 4 layers"));
}

TEST(PipelineModule, RefusesATiedUseWithoutItsKey) {
  auto layers = embedding_and_head();
  layers.erase(layers.begin());
  EXPECT_THAT(error_of([&] { weights_over(1, layers); }), HasSubstr("'wte', which no earlier layer makes"));
}

TEST(PipelineModule, RefusesRanksWithDifferentLayers) {
  const std::string error = error_of([] {
    run_ranks(2, [](World& world) {
      auto layers = embedding_and_head();
      if (world.rank() == 1) layers[2] = layer<nn::Tanh>();
      PipelineModule(Mesh(world, {.pipe = 2}), layers, {.partition = by_layers()});
    });
  });
  EXPECT_THAT(error, HasSubstr("layer 2 is Linear"));
  EXPECT_THAT(error, HasSubstr("layer 2 is Tanh"));
}

TEST(PipelineModule, RefusesLibTorchsDropoutWhereRanksAreThreads) {
  const auto with = [](double p) {
    return [p] { weights_over(1, {layer_of(nn::Sequential(nn::Linear(2, 2), nn::Dropout(p)).ptr())}); };
  };
  EXPECT_THAT(error_of(with(0.1)),
              HasSubstr("layer 0 (Sequential) has a Dropout that draws from the process-wide generator"));
  EXPECT_EQ(error_of(with(0.0)), "no error");
}

TEST(PipelineModule, SaysWhichLayerDoesNotTakeWhatItIsGiven) {
  const std::vector<LayerSpec> layers{function("pair", [](const Tensor& x) { return std::tuple{x, x}; }),
                                      layer<nn::Linear>(4, 4)};
  const std::string error = error_of(
      [&] { run_ranks(1, [&](World& world) { PipelineModule(Mesh(world, {}), layers).forward({at::ones({4})}); }); });
  EXPECT_THAT(error, HasSubstr("layer Linear: its forward takes 1 tensors, but it is given 2"));
}

TEST(PipelineModule, TakesASequentialAndTrainsACopyOfIt) {
  const nn::Sequential net(nn::Linear(2, 3), nn::ReLU(), nn::Linear(3, 1));
  run_ranks(2, [&](World& world) {
    const PipelineModule module(Mesh(world, {.data = 2}), {layer_of(net.ptr())});
    EXPECT_EQ(module.parameters().size(), 4u);
    EXPECT_EQ(module.parameters()[0].name, "layers.0.0.weight");
    EXPECT_NE(module.parameters()[0].tensor().data_ptr(), net->parameters()[0].data_ptr());
    EXPECT_TRUE(at::equal(module.parameters()[0].tensor(), net->parameters()[0]));
    EXPECT_EQ(module.forward({at::ones({5, 2})})[0].sizes(), (std::vector<std::int64_t>{5, 1}));
  });
}

TEST(PipelineModule, CutsAsTheMethodSays) {
  const auto cuts_of = [](PartitionMethod method) {
    std::vector<std::int64_t> cuts;
    run_ranks(2, [&](World& world) {
      const PipelineModule module(Mesh(world, {.pipe = 2}), embedding_and_head(), {.partition = method});
      if (world.rank() == 0) cuts = module.cuts();
    });
    return cuts;
  };
  EXPECT_THAT(cuts_of(by_layers()), ElementsAre(0, 2, 4));
  EXPECT_THAT(cuts_of(by_parameters()), ElementsAre(0, 2, 4));  // 44, 20, 20, 44
  EXPECT_THAT(cuts_of(at_cuts({0, 3, 4})), ElementsAre(0, 3, 4));
  EXPECT_THAT(cuts_of(by_weights({9, 1, 1, 1})), ElementsAre(0, 1, 4));
  EXPECT_THAT(cuts_of(by_type("linear")), ElementsAre(0, 2, 4));
  EXPECT_THAT(error_of([&] { cuts_of(by_type("conv")); }), HasSubstr("conv"));
}

TEST(Executor, SendsZerosForAnInputThatTheNextStageDidNotUse) {
  const std::vector<LayerSpec> layers{function("pair", [](const Tensor& x) { return std::tuple{x * 2, x * 3}; }),
                                      function("first only", [](const Tensor& x, const Tensor&) { return x; })};
  run_ranks(2, [&](World& world) {
    const PipelineModule module(Mesh(world, {.pipe = 2}), layers, {.partition = by_layers()});
    const Tensor input = at::ones({2}).set_requires_grad(true);
    execute(
        module, gpipe().generate(2, 1), [&](std::int64_t) { return MicroBatch{{input}, {}}; },
        [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); });
    if (module.first_stage()) {
      EXPECT_TRUE(at::equal(input.grad(), at::full({2}, 2.0)));
    }
  });
}

TEST(Executor, RefusesALossThatIsNotOneNumber) {
  EXPECT_THAT(error_of([] {
                run_ranks(1, [](World& world) {
                  const PipelineModule module(Mesh(world, {}), {layer<nn::Linear>(2, 2)});
                  execute(
                      module, gpipe().generate(1, 1), [](std::int64_t) { return MicroBatch{{at::ones({2})}, {}}; },
                      [](const Tensors& outputs, const Tensors&) { return outputs[0]; });
                });
              }),
              HasSubstr("2 elements"));
}

}  // namespace
}  // namespace espalier
