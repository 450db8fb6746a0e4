// SPDX-License-Identifier: Apache-2.0
// Parameters that are trained in different ways, in any layout, against LibTorch's own parameter groups in one process.
#include "espalier/sharding/parameter_settings.hpp"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <mutex>

#include "espalier/comm/run_ranks.hpp"
#include "espalier/train/engine.hpp"
#include "espalier/train/optimizers/onebit_adam.hpp"
#include "espalier/train/optimizers/torch_optimizer.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier {
namespace {

namespace nn = torch::nn;
using ByName = std::map<std::string, at::Tensor>;

constexpr std::int64_t kNumSteps = 5, kAllMicroBatches = 4;  // of all data ranks

MicroBatch points(std::int64_t step, std::int64_t index) {
  const at::Tensor x = at::arange(12, at::kDouble).view({3, 4}) * 0.1 + static_cast<double>(step * 7 + index);
  return {{x.sin().to(at::kFloat)}, {x.cos().to(at::kFloat)}};
}

at::Tensor mean_square(const Tensors& outputs, const Tensors& targets) {
  return (outputs[0] - targets[0]).square().mean();
}

// Decay for matrices alone, and the last layer slowly.
ParameterSettings slow_and_undecayed(const Parameter& parameter) {
  ParameterSettings settings = decay_matrices_only(parameter);
  settings.lr_scale = parameter.name.starts_with("layers.2.") ? 0.25 : 1.0;
  return settings;
}

struct Course {
  ByName first, last;
};

// To the last step; with a folder, to the checkpoint of step 3, or from it.
Course train_in(const LayoutSpec& layout, const OptimizerFactory& optimizer, const ParameterRule& settings,
                const std::string& folder = "") {
  Course course;
  std::mutex mutex;
  run_ranks(layout.pipe * layout.data, [&](World& world) {
    const Mesh mesh(world, layout);
    const PipelineModule module(mesh, {layer<nn::Linear>(4, 4), layer<nn::Tanh>(), layer<nn::Linear>(4, 4)},
                                {.partition = by_layers(), .seed = 3});
    const std::int64_t mine = kAllMicroBatches / layout.data;
    Engine engine(mesh, module, optimizer,
                  {.micro_batches = mine, .loss = mean_square, .parameter_settings = settings});
    const auto keep = [&](ByName& tensors) {
      const std::lock_guard lock(mutex);
      for (const Parameter& one : module.parameters()) tensors[one.name] = one.tensor().detach().clone();
    };
    keep(course.first);
    if (!folder.empty()) static_cast<void>(engine.resume(folder));
    while (engine.step() < kNumSteps) {
      const std::int64_t step = engine.step();
      engine.train_batch([&](std::int64_t m) { return points(step, mesh.coordinate("data") * mine + m); });
      if (!folder.empty() && engine.step() == 3) {
        engine.save(folder);
        break;
      }
    }
    keep(course.last);
  });
  return course;
}

// The same by hand: LibTorch's optimizer with a group for each parameter.
template <class Torch, class Options>
ByName by_hand(const ByName& first, const Options& options) {
  ByName weights;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& [name, tensor] : first) {
    const at::Tensor weight = weights[name] = tensor.clone().requires_grad_();
    auto own = std::make_unique<Options>(options);
    if (tensor.dim() < 2) own->weight_decay(0.0);
    if (name.starts_with("layers.2.")) own->set_lr(0.25 * options.lr());
    groups.emplace_back(std::vector<at::Tensor>{weight}, std::move(own));
  }
  Torch optimizer(groups, options);
  for (std::int64_t step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    for (std::int64_t m = 0; m < kAllMicroBatches; ++m) {
      const MicroBatch batch = points(step, m);
      const at::Tensor hidden =
          at::linear(batch.inputs[0], weights.at("layers.0.weight"), weights.at("layers.0.bias")).tanh();
      const at::Tensor out = at::linear(hidden, weights.at("layers.2.weight"), weights.at("layers.2.bias"));
      (mean_square({out}, batch.targets) / static_cast<double>(kAllMicroBatches)).backward();
    }
    optimizer.step();
  }
  return weights;
}

void expect_same_course(const ByName& got, const ByName& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want)
    EXPECT_LT((got.at(name) - tensor.detach()).abs().max().item<double>(), 2e-6) << name;
}

TEST(ParameterSettings, TrainAsTorchsGroupsDoInEveryLayout) {
  const auto adamw_options = torch::optim::AdamWOptions(0.05).weight_decay(0.3);
  const auto sgd_options = torch::optim::SGDOptions(0.05).weight_decay(0.3).momentum(0.9);
  for (const LayoutSpec& layout : {LayoutSpec{}, {.pipe = 2}, {.data = 2}, {.pipe = 2, .data = 2}}) {
    SCOPED_TRACE(Layout(layout, layout.pipe * layout.data).to_string());
    const Course adam = train_in(layout, torch_optimizer<torch::optim::AdamW>(adamw_options), slow_and_undecayed);
    expect_same_course(adam.last, by_hand<torch::optim::AdamW>(adam.first, adamw_options));
    const Course sgd = train_in(layout, torch_optimizer<torch::optim::SGD>(sgd_options), slow_and_undecayed);
    expect_same_course(sgd.last, by_hand<torch::optim::SGD>(sgd.first, sgd_options));
  }
}

TEST(ParameterSettings, OfOnebitAdamAreThoseOfAdamWUntilItsFreeze) {
  const OptimizerFactory onebit = onebit_adam({.lr = 0.05, .weight_decay = 0.3, .freeze_step = 100});
  const Course course = train_in({.data = 2}, onebit, slow_and_undecayed);
  expect_same_course(course.last,
                     by_hand<torch::optim::AdamW>(course.first, torch::optim::AdamWOptions(0.05).weight_decay(0.3)));
}

TEST(ParameterSettings, AreKeptInCheckpointsByTheNamesOfParameters) {
  const OptimizerFactory optimizer = adamw({.lr = 0.05, .weight_decay = 0.3});
  const testing_support::TemporaryFolder folder;
  const Course whole = train_in({}, optimizer, slow_and_undecayed);
  train_in({.pipe = 2, .data = 2}, optimizer, slow_and_undecayed, folder.path());
  expect_same_course(train_in({.data = 2}, optimizer, slow_and_undecayed, folder.path()).last, whole.last);
}

TEST(ParameterSettings, RefuseNumbersThatMakeNoSense) {
  const auto negative = [](const Parameter&) { return ParameterSettings{.lr_scale = -1.0}; };
  EXPECT_THAT(testing_support::error_of([&] { train_in({}, adamw(), negative); }),
              ::testing::AllOf(::testing::HasSubstr("layers.0.weight"), ::testing::HasSubstr("lr_scale -1")));
}

}  // namespace
}  // namespace espalier
