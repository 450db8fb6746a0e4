// SPDX-License-Identifier: Apache-2.0
// Several tied keys over 2, 3 and 4 stages, against one process in plain LibTorch that has each shared tensor once.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <mutex>
#include <set>

#include "espalier/comm/backends/recording/recording.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/sharding/tensor_file.hpp"
#include "espalier/train/engine.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/reference_train.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier {
namespace {

namespace tied_layers {

using testing_support::NamedTensors;
namespace nn = torch::nn;

constexpr std::int64_t kWidth = 4;
constexpr std::int64_t kMicroBatches = 4;  // of all data ranks
constexpr std::int64_t kSteps = 3;

// x * scale + shift + gain, of which scale and shift are tied.
class Affine : public nn::Module {
 public:
  explicit Affine(double start) {
    scale = register_parameter("scale", at::full({kWidth}, start, at::kDouble));
    shift = register_parameter("shift", at::full({kWidth}, 0.1 * start, at::kDouble));
    gain = register_parameter("gain", at::full({1}, 0.01, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return x * scale + shift + gain; }
  at::Tensor scale, shift, gain;
};

class Square : public nn::LinearImpl {
 public:
  Square() : LinearImpl(kWidth, kWidth) { to(at::kDouble); }
};

// Keys "a" (all of a layer, used four times, the last time without its parameters) and "b" (two attributes of three).
std::vector<LayerSpec> tied_model() {
  const auto use_a = tied_use<Square>("a", [](Square& a, const at::Tensor& x) { return a.forward(x).tanh(); });
  const auto use_b = tied_use<Affine>("b", [](Affine& b, const at::Tensor& x) { return b.forward(x); });
  LayerSpec b = tied<Affine>("b", 0.9);
  b.attributes = {"scale", "shift"};
  return {tied<Square>("a"),
          b,
          use_a,
          use_b,
          use_a,
          use_b,
          tied_use<Square>("a", [](Square&, const at::Tensor& x) { return x * 1.5; }),
          layer<Square>()};
}

at::Tensor squares(const Tensors& outputs, const Tensors&) { return outputs[0].square().mean(); }

MicroBatch numbers(std::int64_t step, std::int64_t index) {
  return {{at::arange(2 * kWidth, at::kDouble)
               .reshape({2, kWidth})
               .mul(0.1)
               .add(0.3 * static_cast<double>(index - step))
               .sin()},
          {}};
}

// The same model by hand.
at::Tensor reference_loss(NamedTensors& p, const at::Tensor& input) {
  const auto a = [&](const at::Tensor& x) { return at::linear(x, p["a.weight"], p["a.bias"]); };
  const auto b = [&](const at::Tensor& x, const char* layer) {
    return x * p["b.scale"] + p["b.shift"] + p[std::string("layers.") + layer + ".gain"];
  };
  at::Tensor x = b(a(input), "1");
  x = b(a(x).tanh(), "3");
  x = b(a(x).tanh(), "5");
  return at::linear(x * 1.5, p["layers.7.weight"], p["layers.7.bias"]).square().mean();
}

testing_support::ReferenceResult train_serially() {
  NamedTensors parameters;
  run_ranks(1, [&](World& world) {
    const PipelineModule module(Mesh(world, {}), tied_model());
    for (const Parameter& parameter : module.parameters())
      parameters[parameter.name] = parameter.tensor().detach().clone().set_requires_grad(true);
  });
  const auto micro_batches = [](std::int64_t step) {
    std::vector<testing_support::ReferenceMicroBatch> all;
    for (std::int64_t i = 0; i < kMicroBatches; ++i) all.push_back({numbers(step, i).inputs, {}});
    return all;
  };
  return testing_support::reference_train(
      parameters,
      [&](const testing_support::ReferenceMicroBatch& at) { return reference_loss(parameters, at.inputs[0]); },
      micro_batches, kSteps,
      {.lr = [](std::int64_t) { return 0.01; }, .beta2 = 0.999, .weight_decay = 0.0, .max_norm = 0.05});
}

struct TiedRun {
  std::int64_t pipe;
  std::int64_t data;
  PartitionMethod partition;
};

// Cuts with keys on neighbouring and on distant stages, twice on one, and on one alone.
std::vector<TiedRun> tied_runs() {
  return {{1, 2, by_layers()},           {2, 1, by_layers()},
          {2, 2, at_cuts({0, 1, 8})},    {3, 1, by_layers()},
          {3, 2, at_cuts({0, 2, 6, 8})}, {3, 1, at_cuts({0, 1, 2, 8})},
          {4, 1, by_layers()},           {4, 1, at_cuts({0, 5, 6, 7, 8})}};
}

// Trains on every rank, then calls `after`.
void train_tied(const TiedRun& run, World& world,
                const std::function<void(Engine&, const std::vector<StepResult>&)>& after) {
  const Mesh mesh(world, {.pipe = run.pipe, .data = run.data});
  const PipelineModule module(mesh, tied_model(), {.partition = run.partition});
  const std::int64_t micro_batches = kMicroBatches / run.data;
  Engine engine(mesh, module, adamw({.beta2 = 0.999, .weight_decay = 0.0}),
                {.micro_batches = micro_batches,
                 .loss = squares,
                 .lr = [](std::int64_t) { return 0.01; },
                 .max_grad_norm = 0.05});
  std::vector<StepResult> steps;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    steps.push_back(
        engine.train_batch([&](std::int64_t m) { return numbers(step, mesh.coordinate("data") * micro_batches + m); }));
  }
  after(engine, steps);
}

double difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(TiedLayers, TrainAsOneTensorOverAnyStages) {
  const testing_support::ReferenceResult expected = train_serially();
  std::int64_t elems = 0;
  for (const auto& [name, weight] : expected.final_weights) elems += weight.numel();
  for (const Backend backend : {Backend::host, Backend::gloo}) {
    for (const TiedRun& run : tied_runs()) {
      SCOPED_TRACE(std::string(to_string(backend)) + " pipe=" + std::to_string(run.pipe) +
                   " data=" + std::to_string(run.data));
      std::mutex mutex;
      std::set<std::string> names;
      run_ranks(run.pipe * run.data,
                [&](World& world) {
                  train_tied(run, world, [&](Engine& engine, const std::vector<StepResult>& steps) {
                    engine.module().verify_tied();
                    const std::int64_t counted = engine.num_parameters();
                    const std::lock_guard lock(mutex);
                    EXPECT_EQ(counted, elems);
                    for (std::int64_t step = 0; step < kSteps; ++step) {
                      EXPECT_NEAR(steps[step].loss, expected.losses[step], 1e-12);
                      EXPECT_NEAR(steps[step].grad_norm, expected.norms[step], 1e-12);
                    }
                    for (const Parameter& parameter : engine.module().parameters()) {
                      names.insert(parameter.name);
                      EXPECT_LE(difference(parameter.tensor(), expected.final_weights.at(parameter.name)), 1e-10)
                          << parameter.name;
                    }
                  });
                },
                {.backend = backend});
      EXPECT_EQ(names.size(), expected.final_weights.size());
    }
  }
}

class Weight : public nn::Module {
 public:
  Weight() { w = register_parameter("w", at::ones({2}, at::kDouble)); }
  at::Tensor forward(const at::Tensor& x) { return x + w; }
  at::Tensor w;
};

// The data mean and the sum over stages, in numbers that are exact. A use that ignores the weight adds nothing.
TEST(TiedLayers, GiveEveryHolderTheSumOfTheStagesDataMeans) {
  const auto times = [](double factor) {
    return tied_use<Weight>(
        "w", [factor](Weight& weight, const at::Tensor& x) { return factor == 0.0 ? x * 1 : x + factor * weight.w; });
  };
  const std::vector<LayerSpec> all{tied<Weight>("w"), times(0.0), times(4.0), times(16.0)};
  for (const std::int64_t pipe : {2, 3, 4}) {
    run_ranks(2 * pipe, [&](World& world) {
      const Mesh mesh(world, {.pipe = pipe, .data = 2});
      const PipelineModule module(mesh, all, {.partition = by_layers()});
      Engine engine(mesh, module, adamw(), {.loss = [](const Tensors& outputs, const Tensors& targets) {
                      return (outputs[0] * targets[0]).sum();
                    }});
      // Data rank d's gradient of the output is d + 1 everywhere: (1 + 2) / 2 for each unit of the weight.
      engine.train_batch([&](std::int64_t) {
        return MicroBatch{{at::zeros({2}, at::kDouble)},
                          {at::full({2}, static_cast<double>(1 + mesh.coordinate("data")), at::kDouble)}};
      });
      for (const Parameter& parameter : module.parameters()) {
        if (!parameter.tensor().grad().equal(at::full({2}, 1.5 * (1 + 0 + 4 + 16), at::kDouble)))
          throw std::runtime_error("wrong sum");
      }
    });
  }
}

TEST(TiedLayers, AreReducedOnceAStepAndTensor) {
  std::vector<std::shared_ptr<detail::Recorder>> recorders(4);
  for (auto& recorder : recorders) recorder = std::make_shared<detail::Recorder>();
  detail::run_ranks_recorded(recorders, [](World& world) {
    train_tied({4, 1, at_cuts({0, 2, 4, 7, 8})}, world, [](Engine&, const std::vector<StepResult>&) {});
  });
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    std::int64_t reductions = 0;
    for (const auto& call : recorders[rank]->calls())
      reductions += call.operation == "all_reduce" && call.group == "tied a";
    EXPECT_EQ(reductions, rank == 3 ? 0 : 2 * 2 * kSteps)
        << "rank " << rank;  // a's two tensors and b's, on the same stages
  }
}

TEST(TiedLayers, AreInACheckpointOnce) {
  const testing_support::TemporaryFolder folder;
  run_ranks(4, [&](World& world) {
    train_tied({4, 1, by_layers()}, world,
               [&](Engine& engine, const std::vector<StepResult>&) { engine.save(folder.path()); });
  });
  const std::string step = folder.path() + "/step-00000003/";
  const auto names_in = [&](const std::string& file) {
    std::vector<std::string> names;
    const TensorFile tensors(step + file);
    for (const TensorInfo& info : tensors.tensors()) {
      if (info.name.find(':') == std::string::npos) names.push_back(info.name);
    }
    return names;
  };
  EXPECT_THAT(names_in("a.safetensors"), ::testing::UnorderedElementsAre("a.weight", "a.bias"));
  EXPECT_THAT(names_in("b.safetensors"), ::testing::UnorderedElementsAre("b.scale", "b.shift"));
  EXPECT_THAT(names_in("layers.3.safetensors"), ::testing::ElementsAre("layers.3.gain"));
  for (const TiedRun& other : tied_runs()) {
    run_ranks(other.pipe * other.data, [&](World& world) {
      const Mesh mesh(world, {.pipe = other.pipe, .data = other.data});
      const PipelineModule module(mesh, tied_model(), {.partition = other.partition, .seed = 99});
      Engine engine(mesh, module, adamw(), {.loss = squares});
      if (!engine.resume(folder.path())) throw std::runtime_error("nothing to resume");
      module.verify_tied();
      for (const Parameter& parameter : module.parameters()) {
        if (!parameter.placement.tied()) continue;
        const TensorFile tensors(step + parameter.name.substr(0, 1) + ".safetensors");
        if (!tensors.read(parameter.name).equal(parameter.tensor()))
          throw std::runtime_error(parameter.name + " differs");
      }
    });
  }
}

TEST(TiedLayers, UsedTwiceOnAStageShareTheirMemory) {
  run_ranks(1, [](World& world) {
    const PipelineModule module(Mesh(world, {}), tied_model());
    for (const Parameter& parameter : module.parameters()) {
      EXPECT_EQ(parameter.uses.size(), parameter.name.starts_with("b.") ? 3U : 1U) << parameter.name;
      for (const at::Tensor& use : parameter.uses)
        EXPECT_EQ(use.data_ptr(), parameter.tensor().data_ptr()) << parameter.name;
    }
  });
}

TEST(TiedLayers, VerifyTiedNamesACopyThatDiffersInOneBit) {
  for (const std::int64_t pipe : {2, 4}) {
    std::mutex mutex;
    std::set<std::string> errors;
    run_ranks(pipe, [&](World& world) {
      const PipelineModule module(Mesh(world, {.pipe = pipe}), tied_model(), {.partition = by_layers()});
      module.verify_tied();
      at::Tensor last;
      for (const Parameter& parameter : module.parameters()) {
        if (parameter.name == "a.weight") last = parameter.tensor().detach().view({-1});
      }
      if (world.rank() == pipe - 1) last[7].fill_(5.0);
      module.synchronize_tied();
      module.verify_tied();
      if (world.rank() == 0) last[7].zero_();  // the owner's; synchronized, zero in every bit
      module.synchronize_tied();
      module.verify_tied();
      if (world.rank() == pipe - 1) last[7].fill_(-0.0);
      const std::string error = testing_support::error_of([&] { module.verify_tied(); });
      const std::lock_guard lock(mutex);
      errors.insert(error);
    });
    EXPECT_THAT(errors,
                ::testing::ElementsAre(
                    "pipeline: rank " + std::to_string(pipe - 1) + " (stage " + std::to_string(pipe - 1) +
                    ") has -0 in element 7 of tied a.weight, but its owner, rank 0, has 0; expected the same bits: "
                    "call synchronize_tied after changing a copy"));
  }
}

}  // namespace tied_layers

}  // namespace
}  // namespace espalier
