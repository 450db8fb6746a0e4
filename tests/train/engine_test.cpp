// SPDX-License-Identifier: Apache-2.0
#include "espalier/train/engine.hpp"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <map>
#include <mutex>
#include <optional>

#include "espalier/base/error.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/train/optimizers/onebit_adam.hpp"
#include "espalier/train/optimizers/torch_optimizer.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/small_disk.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier {
namespace {

using at::Tensor;
namespace nn = torch::nn;

std::vector<LayerSpec> layers() {
  return {tied<nn::Embedding>("wte", 7, 4), layer<nn::Linear>(4, 4), layer<nn::Tanh>(), layer<nn::BatchNorm1d>(4),
          tied_use<nn::Embedding>("wte", [](nn::EmbeddingImpl& e, const Tensor& x) { return x.matmul(e.weight.t()); })};
}

Tensor loss(const Tensors& outputs, const Tensors& targets) { return at::cross_entropy_loss(outputs[0], targets[0]); }

MicroBatch tokens(std::int64_t step, std::int64_t index) {
  const Tensor tokens = (at::arange(6 + index % 2, at::kLong) * 3 + step + index) % 7;  // lengths differ
  return {{tokens}, {(tokens + 1) % 7}};
}

using Weights = std::map<std::string, Tensor>;

struct Training {
  LayoutSpec layout = {};
  std::int64_t micro_batches = 2;
  OptimizerFactory optimizer = adamw({.lr = 0.05});
  double max_grad_norm = 0.0;
};

// Trains on ranks as threads; `around` is called on every rank before each step, and after the last with step == steps.
Weights train(const Training& run, std::int64_t steps,
              const std::function<void(Engine&, World&, std::int64_t step)>& around = {}) {
  Weights weights;
  std::mutex mutex;
  run_ranks(run.layout.pipe * run.layout.data, [&](World& world) {
    const Mesh mesh(world, run.layout);
    const PipelineModule module(mesh, layers(), {.partition = by_layers()});
    Engine engine(mesh, module, run.optimizer,
                  {.micro_batches = run.micro_batches, .loss = loss, .max_grad_norm = run.max_grad_norm});
    const std::int64_t first = mesh.coordinate("data") * run.micro_batches;
    while (engine.step() < steps) {
      if (around) around(engine, world, engine.step());
      if (engine.step() == steps) break;
      const std::int64_t step = engine.step();
      engine.train_batch([&](std::int64_t m) { return tokens(step, first + m); });
    }
    if (around) around(engine, world, steps);
    if (mesh.coordinate("data") != 0) return;  // running means differ between data ranks; those of the first are saved
    const std::lock_guard lock(mutex);
    for (const Parameter& parameter : module.parameters())
      weights[parameter.name] = parameter.tensor().detach().clone();
    for (const Parameter& buffer : module.buffers()) weights[buffer.name] = buffer.tensor().clone();
  });
  return weights;
}

void expect_equal(const Weights& a, const Weights& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

TEST(Engine, IsNotChangedByEvaluationBetweenSteps) {
  const Training run{.layout = {.pipe = 2, .data = 2}};
  const Weights plain = train(run, 4);
  expect_equal(plain, train(run, 4, [](Engine& engine, World&, std::int64_t step) {
                 const double once = engine.eval_batch([&](std::int64_t m) { return tokens(step, m); }, 3);
                 const double twice = engine.eval_batch([&](std::int64_t m) { return tokens(step, m); }, 3);
                 EXPECT_EQ(once, twice);
                 const auto alike = [&](std::int64_t) { return tokens(step, 5); };
                 EXPECT_NEAR(engine.eval_batch(alike, 1), engine.eval_batch(alike, 3), 1e-6);
               }));
}

TEST(Engine, CountsEveryParameterOnce) {
  for (const LayoutSpec& layout : {LayoutSpec{}, LayoutSpec{.pipe = 2, .data = 2}, LayoutSpec{.pipe = 5}}) {
    train({.layout = layout}, 1,
          [](Engine& engine, World&, std::int64_t) { EXPECT_EQ(engine.num_parameters(), 7 * 4 + 4 * 4 + 4 + 2 * 4); });
  }
}

TEST(Engine, SkipsAStepWhoseGradientsAreNotFinite) {
  run_ranks(2, [](World& world) {
    const Mesh mesh(world, {.data = 2});
    const PipelineModule module(mesh, {layer<nn::Linear>(2, 1)});
    Engine engine(mesh, module, adamw(), {.loss = [](const Tensors& outputs, const Tensors& targets) {
                    return (outputs[0] * targets[0]).sum();
                  }});
    const Tensor before = module.parameters()[0].tensor().detach().clone();
    const double factor = world.rank() == 0 ? INFINITY : 1.0;
    const StepResult result =
        engine.train_batch([&](std::int64_t) { return MicroBatch{{at::ones({1, 2})}, {at::full({1}, factor)}}; });
    EXPECT_TRUE(result.skipped);
    EXPECT_TRUE(at::equal(before, module.parameters()[0].tensor()));
    EXPECT_EQ(engine.step(), 1);
    EXPECT_FALSE(
        engine.train_batch([](std::int64_t) { return MicroBatch{{at::ones({1, 2})}, {at::ones({1})}}; }).skipped);
    EXPECT_FALSE(at::equal(before, module.parameters()[0].tensor()));
  });
}

struct Named {
  const char* name;
  OptimizerFactory factory;
};
std::vector<Named> optimizers() {
  using namespace torch::optim;
  return {{"AdamW", adamw({.lr = 0.05})},
          {"1-bit Adam", onebit_adam({.lr = 0.05, .freeze_step = 2})},
          {"Adam with amsgrad", torch_optimizer<Adam>(AdamOptions(0.05).amsgrad(true))},
          {"SGD with momentum", torch_optimizer<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.1))},
          {"Adagrad", torch_optimizer<Adagrad>(AdagradOptions(0.1))},
          {"RMSprop", torch_optimizer<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true))}};
}

TEST(Engine, ResumesBitForBitWithEveryOptimizer) {
  for (const Named& optimizer : optimizers()) {
    SCOPED_TRACE(optimizer.name);
    const Training run{.layout = {.pipe = 2, .data = 2}, .optimizer = optimizer.factory, .max_grad_norm = 0.1};
    const testing_support::TemporaryFolder folder;
    const Weights whole = train(run, 6, [&](Engine& engine, World&, std::int64_t step) {
      if (step == 3) engine.save(folder.path());
    });
    expect_equal(whole, train(run, 6, [&](Engine& engine, World&, std::int64_t step) {
                   if (step == 0) {
                     EXPECT_TRUE(engine.resume(folder.path()));
                   }
                   EXPECT_GE(engine.step(), 3);
                 }));
  }
}

TEST(Engine, ResumesInAnotherLayoutWithTheSameTensors) {
  const testing_support::TemporaryFolder folder;
  const auto save = [&](Engine& engine, World&, std::int64_t step) {
    if (step == 3) engine.save(folder.path());
  };
  const Weights saved = train({.layout = {.pipe = 2, .data = 2}}, 3, save);
  for (const LayoutSpec& layout : {LayoutSpec{}, LayoutSpec{.pipe = 3}, LayoutSpec{.data = 2}}) {
    expect_equal(saved, train({.layout = layout}, 3, [&](Engine& engine, World&, std::int64_t step) {
                   if (step == 0) {
                     EXPECT_TRUE(engine.resume(folder.path()));
                   }
                 }));
  }
}

TEST(Engine, ResumesFromTheFormerCheckpointAfterAFullDiskWhileSaving) {
  const Training run{.layout = {.pipe = 2, .data = 2}};
  const testing_support::TemporaryFolder folder;
  const Weights whole = train(run, 4, [&](Engine& engine, World& world, std::int64_t step) {
    if (step == 2) engine.save(folder.path());
    if (step != 3) return;
    std::optional<testing_support::SmallDisk> disk;
    if (world.rank() == 0) disk.emplace(500);
    barrier(world.group()).wait();
    EXPECT_THAT(testing_support::error_of([&] { engine.save(folder.path()); }),
                ::testing::AllOf(::testing::HasSubstr("step-00000003"), ::testing::HasSubstr("File too large")));
    barrier(world.group()).wait();
  });
  expect_equal(whole, train(run, 4, [&](Engine& engine, World&, std::int64_t step) {
                 if (step != 0) return;
                 EXPECT_TRUE(engine.resume(folder.path()));
                 EXPECT_EQ(engine.step(), 2);
               }));
}

TEST(Engine, HasNothingToResumeInAnEmptyFolder) {
  const testing_support::TemporaryFolder folder;
  train({}, 1, [&](Engine& engine, World&, std::int64_t) { EXPECT_FALSE(engine.resume(folder.path())); });
}

TEST(Engine, KeepsTheNewestTwoCheckpoints) {
  const testing_support::TemporaryFolder folder;
  train({.layout = {.data = 2}}, 4, [&](Engine& engine, World&, std::int64_t) { engine.save(folder.path()); });
  EXPECT_THAT(folder.names(), ::testing::ElementsAre("latest", "step-00000003", "step-00000004"));
}

// Calls `body` on two data ranks with an engine for one matrix.
void with_matrix(std::int64_t rows, std::int64_t columns, const std::function<void(Engine&)>& body) {
  run_ranks(2, [&](World& world) {
    const Mesh mesh(world, {.data = 2});
    const PipelineModule module(mesh, {layer<nn::Linear>(nn::LinearOptions(columns, rows).bias(false))});
    Engine engine(mesh, module, adamw(), {.loss = loss});
    body(engine);
  });
}

TEST(Engine, RefusesACheckpointOfAnotherModelOrFormat) {
  const testing_support::TemporaryFolder folder;
  with_matrix(2, 3, [&](Engine& engine) { engine.save(folder.path()); });
  const auto refusal = [&](std::int64_t rows, std::int64_t columns) {
    return testing_support::error_of(
        [&] { with_matrix(rows, columns, [&](Engine& engine) { engine.resume(folder.path()); }); });
  };
  EXPECT_THAT(refusal(2, 4),
              ::testing::HasSubstr("has 6 parameters, this one 8; resume with the model it was saved from"));
  EXPECT_THAT(
      refusal(3, 2),
      ::testing::HasSubstr("is Float [2,3], but the model's is Float [3,2]; resume with the model it was saved from"));
  EXPECT_EQ(refusal(2, 3), "no error");

  const std::string path = folder.file("step-00000000/manifest.json"), manifest = testing_support::read_text(path);
  const auto refusal_with = [&](const std::string& saved, const std::string& damaged) {
    testing_support::write_text(path, std::string(manifest).replace(manifest.find(saved), saved.size(), damaged));
    return refusal(2, 3);
  };
  EXPECT_THAT(refusal_with("\"version\": 1", "\"version\": 2"),
              ::testing::HasSubstr("has format version 2; this program reads 1"));
  EXPECT_THAT(refusal_with("espalier checkpoint", "shopping list"),
              ::testing::HasSubstr("is not the manifest of an espalier checkpoint"));
  EXPECT_THAT(refusal_with("\"step\": 0", "\"step\": 7"),
              ::testing::HasSubstr("is damaged: it says step 7 of 0 optimizer steps"));
}

TEST(Engine, RefusesAScheduleThatDoesNotTrain) {
  try {
    run_ranks(1, [](World& world) {
      const Mesh mesh(world, {});
      Engine(mesh, PipelineModule(mesh, layers()), adamw(), {.schedule = forward_only(), .loss = loss});
    });
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("forward-only never updates the weights"));
  }
}

TEST(Engine, RefusesOptionsThatDifferBetweenRanks) {
  try {
    run_ranks(2, [](World& world) {
      const Mesh mesh(world, {.data = 2});
      Engine(mesh, PipelineModule(mesh, layers()), adamw(), {.micro_batches = 1 + world.rank(), .loss = loss});
    });
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("micro_batches=1"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("micro_batches=2"));
  }
}

}  // namespace
}  // namespace espalier
