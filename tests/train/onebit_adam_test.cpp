// SPDX-License-Identifier: Apache-2.0
// 1-bit Adam in the engine against a simulation of all its data ranks in one process, which is written from the
// algorithm and shares no code with the library; and its state through checkpoints.
#include "espalier/train/optimizers/onebit_adam.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <map>
#include <mutex>

#include "espalier/comm/run_ranks.hpp"
#include "espalier/models/gpt/gpt.hpp"
#include "espalier/sharding/tensor_file.hpp"
#include "espalier/train/engine.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/expect.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier {
namespace {

namespace onebit {

using at::Tensor;
using ::testing::HasSubstr;
using testing_support::expect;
using Named = std::map<std::string, Tensor>;

constexpr std::int64_t kVocab = 7;
constexpr std::int64_t kHidden = 6;
constexpr std::int64_t kFreeze = 4;
constexpr std::int64_t kMicroBatches = 2;
constexpr double kTolerance = 1e-10;  // sums in another order, amplified by the steps

std::vector<LayerSpec> model() {
  return {tied<torch::nn::Embedding>("wte", kVocab, kHidden), layer<torch::nn::Linear>(kHidden, kHidden),
          layer<torch::nn::Tanh>(), layer<torch::nn::Linear>(kHidden, kHidden),
          tied_use<torch::nn::Embedding>(
              "wte", [](torch::nn::EmbeddingImpl& e, const Tensor& x) { return x.matmul(e.weight.t()); })};
}

Tensor loss_of(const Tensors& outputs, const Tensors& targets) {
  return at::cross_entropy_loss(outputs[0], targets[0]);
}

MicroBatch batch(std::int64_t step, std::int64_t index) {
  const Tensor tokens = (at::arange(6 + index % 2, at::kLong) * (3 + index) + 5 * step) % kVocab;
  return {{tokens}, {(tokens * tokens + 1 + index) % kVocab}};
}

Tensor mask_one_bias(const Parameter& parameter) {
  if (parameter.name != "layers.1.bias") return {};
  Tensor mask = at::ones_like(parameter.tensor().detach());
  mask[2] = 0.0;
  return mask;
}

struct Case {
  LayoutSpec layout = {};
  OnebitAdamOptions options = {.lr = 0.02, .beta2 = 0.95, .weight_decay = 0.1, .freeze_step = kFreeze};
  at::ScalarType dtype = at::kDouble;
  double max_norm = 0.4;
  WorldOptions world = {};
};

std::vector<LayerSpec> model_in(at::ScalarType dtype) {
  auto layers = model();
  for (LayerSpec& spec : layers) {
    if (!spec.build) continue;
    spec.build = [build = spec.build, dtype] {
      auto module = build();
      module->to(dtype);
      return module;
    };
  }
  return layers;
}

// Trains on ranks as threads. `around` is called on every rank before each step and after the last one.
using Around = std::function<void(Engine&, const Mesh&, const StepResult& last)>;
void train_ranks(const Case& run, std::int64_t steps, const Around& around) {
  run_ranks(
      run.layout.pipe * run.layout.data,
      [&](World& world) {
        const Mesh mesh(world, run.layout);
        const PipelineModule module(mesh, model_in(run.dtype), {.partition = by_layers()});
        Engine engine(mesh, module, onebit_adam(run.options),
                      {.micro_batches = kMicroBatches, .loss = loss_of, .max_grad_norm = run.max_norm});
        StepResult last;
        around(engine, mesh, last);
        while (engine.step() < steps) {
          const std::int64_t step = engine.step(), first = mesh.coordinate("data") * kMicroBatches;
          last = engine.train_batch([&](std::int64_t m) { return batch(step, first + m); });
          around(engine, mesh, last);
        }
      },
      run.world);
}

// ---- the simulation ----

// Parameters that share a scale, side by side.
struct SharedScale {
  std::vector<std::string> names;
  std::vector<Tensor> worker = {};  // by data rank
  Tensor server = {};
};

class Simulation {
 public:
  Simulation(const Case& run, Named weights, std::vector<SharedScale> shared)
      : run_(run), data_(run.layout.data), weights_(std::move(weights)), shared_(std::move(shared)) {
    for (auto& [name, weight] : weights_) {
      mean_[name] = at::zeros_like(weight);
      square_[name] = at::zeros_like(weight);
    }
    for (SharedScale& one : shared_) {
      one.server = at::zeros_like(flatten(mean_, one));
      one.worker.assign(static_cast<std::size_t>(data_), one.server.clone());
    }
  }

  const Named& weights() const { return weights_; }
  const std::vector<SharedScale>& shared() const { return shared_; }
  double loss = 0.0, norm = 0.0;

  void step() {
    const bool frozen = steps_ >= run_.options.freeze_step;
    std::vector<Named> gradients;
    loss = 0.0;
    double squares = 0.0;
    for (std::int64_t rank = 0; rank < data_; ++rank) gradients.push_back(gradients_of(rank));
    if (!frozen) {
      for (auto& [name, gradient] : gradients[0]) {
        for (std::size_t rank = 1; rank < gradients.size(); ++rank) gradient += gradients[rank][name];
        gradient /= static_cast<double>(data_);
      }
      gradients.resize(1);
    }
    for (const Named& all : gradients) {
      for (const auto& [name, gradient] : all) squares += gradient.square().sum().item<double>();
    }
    norm = std::sqrt(squares / static_cast<double>(gradients.size()));
    const double clip = run_.max_norm > 0 ? std::min(1.0, run_.max_norm / (norm + 1e-6)) : 1.0;
    ++steps_;
    const OnebitAdamOptions& o = run_.options;
    std::vector<Named> means(gradients.size());
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      for (const auto& [name, gradient] : gradients[rank])
        means[rank][name] = o.beta1 * mean_[name] + (1 - o.beta1) * clip * gradient;
    }
    if (frozen) {
      for (Named& mean : means) mask(mean);
      for (SharedScale& one : shared_) exchange(means, one);
      mask(mean_);
    } else {
      mean_ = means[0];
      for (auto& [name, square] : square_)
        square = o.beta2 * square + (1 - o.beta2) * (clip * gradients[0][name]).square();
    }
    const auto t = static_cast<double>(steps_), t2 = static_cast<double>(std::min(steps_, o.freeze_step));
    const double correction1 = o.bias_correction ? 1 - std::pow(o.beta1, t) : 1,
                 correction2 = o.bias_correction ? 1 - std::pow(o.beta2, t2) : 1;
    for (auto& [name, weight] : weights_) {
      const Tensor deviation = (square_[name] / correction2).sqrt();
      weight = weight * (1 - o.lr * o.weight_decay) - o.lr * (mean_[name] / correction1) / (deviation + o.eps);
    }
  }

 private:
  static Tensor flatten(const Named& tensors, const SharedScale& one) {
    std::vector<Tensor> flat;
    for (const std::string& name : one.names) flat.push_back(tensors.at(name).reshape({-1}));
    return at::cat(flat);
  }

  static Tensor signs(const Tensor& values) {
    const double scale = values.norm().item<double>() / std::sqrt(static_cast<double>(values.numel()));
    return at::where(values >= 0, at::full_like(values, scale), at::full_like(values, -scale));
  }

  void mask(Named& tensors) const {
    if (run_.options.momentum_mask) tensors["layers.1.bias"][2] = 0.0;
  }

  // Of one data rank's micro-batches.
  Named gradients_of(std::int64_t rank) {
    Named leaves;
    for (const auto& [name, weight] : weights_) leaves[name] = weight.clone().requires_grad_(true);
    for (std::int64_t m = 0; m < kMicroBatches; ++m) {
      const MicroBatch at = batch(steps_, rank * kMicroBatches + m);
      const Tensor& wte = leaves["wte.weight"];
      const Tensor hidden =
          at::linear(at::embedding(wte, at.inputs[0]), leaves["layers.1.weight"], leaves["layers.1.bias"]).tanh();
      const Tensor out = at::linear(hidden, leaves["layers.3.weight"], leaves["layers.3.bias"]).matmul(wte.t());
      const Tensor mean = at::cross_entropy_loss(out, at.targets[0]) / static_cast<double>(kMicroBatches);
      mean.backward();
      loss += mean.item<double>() / static_cast<double>(data_);
    }
    Named gradients;
    for (const auto& [name, leaf] : leaves) gradients[name] = leaf.grad().clone();
    return gradients;
  }

  // mean_ <- the compressed mean of `means` over the data ranks.
  void exchange(const std::vector<Named>& means, SharedScale& one) {
    Tensor sum = at::zeros_like(one.server);
    for (std::size_t rank = 0; rank < means.size(); ++rank) {
      const Tensor values = flatten(means[rank], one) + one.worker[rank];
      if (data_ == 1) {
        sum = values;
        break;
      }
      one.worker[rank] = values - signs(values);
      sum += signs(values) / static_cast<double>(data_);
    }
    for (std::int64_t begin = 0, chunk = (sum.numel() + 8 * data_ - 1) / (8 * data_) * 8;
         begin < sum.numel() && data_ > 1; begin += chunk) {
      const std::int64_t count = std::min(chunk, sum.numel() - begin);
      Tensor part = sum.narrow(0, begin, count), error = one.server.narrow(0, begin, count);
      const Tensor values = part + error;
      part.copy_(signs(values));
      error.copy_(values - part);
    }
    std::int64_t begin = 0;
    for (const std::string& name : one.names) {
      mean_[name] = sum.narrow(0, begin, mean_[name].numel()).view_as(mean_[name]).clone();
      begin += mean_[name].numel();
    }
  }

  Case run_;
  std::int64_t data_;
  Named weights_, mean_, square_;
  std::vector<SharedScale> shared_;
  std::int64_t steps_ = 0;
};

// What every step of the engine gives, and who shares a scale with whom.
struct Recorded {
  std::vector<double> losses, norms;
  std::vector<Named> weights;                              // before the first step, then after each
  std::map<std::int64_t, std::vector<std::string>> names;  // by stage, in order
  std::vector<AveragingCost> costs;                        // of world rank 0
  std::vector<std::int64_t> fp32_bytes;
};

Recorded record(const Case& run, std::int64_t steps) {
  Recorded result;
  result.weights.resize(static_cast<std::size_t>(steps + 1));
  std::mutex mutex;
  train_ranks(run, steps, [&](Engine& engine, const Mesh& mesh, const StepResult& last) {
    const std::lock_guard lock(mutex);
    const auto step = static_cast<std::size_t>(engine.step());
    std::vector<std::string> names;
    for (const Parameter& parameter : engine.module().parameters()) {
      names.push_back(parameter.name);
      const auto [there, added] = result.weights[step].emplace(parameter.name, parameter.tensor().detach().clone());
      expect(added || at::equal(there->second, parameter.tensor()),
             "copies of " + parameter.name + " differ after step " + std::to_string(step));
    }
    result.names[mesh.coordinate("pipe")] = names;
    if (mesh.world().rank() != 0 || step == 0) return;
    result.losses.push_back(last.loss);
    result.norms.push_back(last.grad_norm);
    result.costs.push_back(last.averaging);
    result.fp32_bytes.push_back(last.averaging_fp32_bytes);
  });
  return result;
}

std::vector<SharedScale> shared_scales(const Recorded& recorded) {
  std::vector<SharedScale> shared;
  std::map<std::string, int> stages;
  for (const auto& [stage, names] : recorded.names) {
    for (const std::string& name : names) ++stages[name];
  }
  if (stages["wte.weight"] > 1) shared.push_back({.names = {"wte.weight"}});
  for (const auto& [stage, names] : recorded.names) {
    SharedScale rest;
    for (const std::string& name : names) {
      if (stages[name] == 1) rest.names.push_back(name);
    }
    if (!rest.names.empty()) shared.push_back(rest);
  }
  return shared;
}

Simulation expect_equals_simulation(const Case& run, std::int64_t steps) {
  const Recorded actual = record(run, steps);
  Simulation simulation(run, actual.weights[0], shared_scales(actual));
  for (std::size_t step = 0; step < static_cast<std::size_t>(steps); ++step) {
    simulation.step();
    EXPECT_NEAR(actual.losses[step], simulation.loss, kTolerance) << "step " << step;
    EXPECT_NEAR(actual.norms[step], simulation.norm, kTolerance) << "step " << step;
    for (const auto& [name, weight] : simulation.weights()) {
      EXPECT_LE((actual.weights[step + 1].at(name) - weight).abs().max().item<double>(), kTolerance)
          << name << " after step " << step;
    }
    if (::testing::Test::HasFailure()) break;
  }
  return simulation;
}

TEST(OnebitAdam, EqualsOneProcessStepByStep) {
  for (const LayoutSpec& layout :
       {LayoutSpec{}, LayoutSpec{.data = 2}, LayoutSpec{.data = 3}, LayoutSpec{.data = 4}, LayoutSpec{.pipe = 2},
        LayoutSpec{.pipe = 2, .data = 2}, LayoutSpec{.pipe = 2, .data = 3}, LayoutSpec{.pipe = 5, .data = 2}}) {
    SCOPED_TRACE(::testing::Message() << "pipe " << layout.pipe << " data " << layout.data);
    Case run{.layout = layout};
    expect_equals_simulation(run, 12);
    run.options.bias_correction = false;
    run.options.momentum_mask = mask_one_bias;
    expect_equals_simulation(run, 12);
  }
}

TEST(OnebitAdam, EqualsOneProcessOverGlooToo) {
  expect_equals_simulation({.layout = {.pipe = 2, .data = 2}, .world = {.backend = Backend::gloo}}, 7);
}

TEST(OnebitAdam, IsAdamWBitForBitUntilTheFreeze) {
  const Case run{.layout = {.pipe = 2, .data = 2}, .dtype = at::kFloat};
  const Recorded ours = record(run, kFreeze + 1);
  std::mutex mutex;
  run_ranks(4, [&](World& world) {
    const Mesh mesh(world, run.layout);
    const PipelineModule module(mesh, model_in(run.dtype), {.partition = by_layers()});
    const OnebitAdamOptions& o = run.options;
    Engine engine(mesh, module, adamw({.lr = o.lr, .beta2 = o.beta2, .weight_decay = o.weight_decay}),
                  {.micro_batches = kMicroBatches, .loss = loss_of, .max_grad_norm = run.max_norm});
    for (std::size_t step = 0; step <= kFreeze; ++step) {
      engine.train_batch([&](std::int64_t m) {
        return batch(static_cast<std::int64_t>(step), mesh.coordinate("data") * kMicroBatches + m);
      });
      const std::lock_guard lock(mutex);
      for (const Parameter& parameter : module.parameters()) {
        const bool same = at::equal(parameter.tensor(), ours.weights[step + 1].at(parameter.name));
        expect(same == (step < kFreeze), parameter.name + " after step " + std::to_string(step));
      }
    }
  });
}

TEST(OnebitAdam, HoldsMaskedMomentumAtZeroFromTheFreezeOn) {
  Case run{.layout = {.data = 2}};
  run.options.momentum_mask = mask_one_bias;
  run.options.weight_decay = 0.0;
  const Recorded recorded = record(run, 8);
  const auto bias = [&](std::size_t step, std::int64_t element) {
    return recorded.weights[step].at("layers.1.bias")[element].item<double>();
  };
  EXPECT_NE(bias(kFreeze, 2), bias(kFreeze - 1, 2));
  EXPECT_EQ(bias(kFreeze, 2), bias(8, 2));
  EXPECT_NE(bias(kFreeze, 3), bias(8, 3));
}

TEST(OnebitAdam, MaskOfTheGptCoversWhatHasNoGradient) {
  run_ranks(1, [](World& world) {
    const Mesh mesh(world, {});
    const PipelineModule module(
        mesh, gpt_layers({.vocab = 11, .layers = 2, .hidden = 8, .heads = 2, .context = 6, .dtype = at::kDouble}));
    Engine engine(mesh, module, adamw(), {.loss = next_token_loss});
    engine.train_batch([](std::int64_t) {
      const Tensor tokens = at::arange(12, at::kLong).view({2, 6}) * 5 % 11;
      return MicroBatch{{tokens}, {(tokens + 3) % 11}};
    });
    std::int64_t masks = 0;
    for (const Parameter& parameter : module.parameters()) {
      const Tensor mask = gpt_momentum_mask(parameter), gradient = parameter.tensor().grad().abs();
      masks += mask.defined();
      if (!mask.defined()) continue;
      expect((gradient * (1 - mask)).max().item<double>() < 1e-15, "masked: no gradient");
      expect(gradient.masked_select(mask.gt(0)).min().item<double>() > 1e-12, "not masked: a gradient");
    }
    expect(masks == 2, "one mask a block");
  });
}

TEST(OnebitAdam, SendsAThirtySecondAfterTheFreezeAndSaysSo) {
  const Recorded recorded = record({.layout = {.data = 4}, .dtype = at::kFloat}, 6);
  constexpr std::int64_t kElems = kVocab * kHidden + 2 * (kHidden * kHidden + kHidden);
  constexpr std::int64_t kExact = 2 * 3 * 4 * kElems / 4, kPadded = (kElems + 31) / 32 * 32;
  for (std::size_t step = 0; step < 6; ++step) {
    EXPECT_EQ(recorded.fp32_bytes[step], kExact);
    EXPECT_EQ(recorded.costs[step].bytes_sent, step < kFreeze ? kExact : 3 * (kPadded / 16 + 8)) << step;
    EXPECT_GT(recorded.costs[step].seconds, 0.0);
  }
}

TEST(OnebitAdam, SkipsAStepThatIsNotFiniteOnOneRankAndKeepsAllItsState) {
  const auto run_with_bad_step = [](std::int64_t bad) {
    Named weights;
    run_ranks(2, [&](World& world) {
      const Mesh mesh(world, {.data = 2});
      const PipelineModule module(mesh, {layer<torch::nn::Linear>(3, 2)});
      Engine engine(mesh, module, onebit_adam({.lr = 0.1, .freeze_step = 2}),
                    {.loss = [](const Tensors& outputs, const Tensors& targets) {
                      return (outputs[0] * targets[0]).square().mean();
                    }});
      for (std::int64_t step = 0, index = 0; index < 6; ++step) {
        const bool is_bad = step == bad;
        const double factor = is_bad && world.rank() == 1 ? INFINITY : static_cast<double>(1 + index + world.rank());
        const StepResult result =
            engine.train_batch([&](std::int64_t) { return MicroBatch{{at::ones({1, 3})}, {at::full({1}, factor)}}; });
        expect(result.skipped == is_bad, "step " + std::to_string(step));
        index += !is_bad;
      }
      if (world.rank() == 0) weights["weight"] = module.parameters()[0].tensor().detach().clone();
    });
    return weights.at("weight");
  };
  const Tensor smooth = run_with_bad_step(-1);
  for (const std::int64_t bad : {1, 2, 4}) EXPECT_TRUE(at::equal(smooth, run_with_bad_step(bad))) << bad;
}

// ---- checkpoints ----

void expect_resumes_bit_for_bit(const Case& run, std::int64_t saved) {
  const testing_support::TemporaryFolder folder;
  constexpr std::int64_t kSteps = 9;
  const auto keep_last = [&](Named& weights, std::mutex& mutex, Engine& engine) {
    if (engine.step() != kSteps) return;
    const std::lock_guard lock(mutex);
    for (const Parameter& parameter : engine.module().parameters())
      weights[parameter.name] = parameter.tensor().detach().clone();
  };
  std::mutex mutex;
  Named whole, resumed;
  train_ranks(run, kSteps, [&](Engine& engine, const Mesh&, const StepResult&) {
    if (engine.step() == saved) engine.save(folder.path());
    keep_last(whole, mutex, engine);
  });
  train_ranks(run, kSteps, [&](Engine& engine, const Mesh&, const StepResult&) {
    if (engine.step() < saved) expect(engine.resume(folder.path()), "nothing to resume");
    keep_last(resumed, mutex, engine);
  });
  ASSERT_EQ(whole.size(), 5U);
  for (const auto& [name, weight] : whole)
    EXPECT_TRUE(at::equal(weight, resumed.at(name))) << name << " saved at " << saved;
}

TEST(OnebitAdam, ResumesBitForBitBeforeAtAndAfterTheFreeze) {
  for (const LayoutSpec& layout : {LayoutSpec{.data = 3}, LayoutSpec{.pipe = 2, .data = 2}}) {
    for (const std::int64_t saved : {kFreeze - 2, kFreeze, kFreeze + 1, kFreeze + 3})
      expect_resumes_bit_for_bit({.layout = layout, .dtype = at::kFloat}, saved);
  }
}

TEST(OnebitAdam, GoesOnFromAdamWWithoutErrorsAndAdamWFromIt) {
  const testing_support::TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const Mesh mesh(world, {.data = 2});
    const auto engine_with = [&](const OptimizerFactory& optimizer) {
      return Engine(mesh, PipelineModule(mesh, model()), optimizer, {.micro_batches = kMicroBatches, .loss = loss_of});
    };
    const auto go_on = [&](Engine engine, std::int64_t from, std::int64_t to) {
      expect(engine.resume(folder.path()) == (from > 0) && engine.step() == from, "resumed at another step");
      StepResult last;
      while (engine.step() < to) {
        const std::int64_t step = engine.step(), first = mesh.coordinate("data") * kMicroBatches;
        last = engine.train_batch([&](std::int64_t m) { return batch(step, first + m); });
      }
      engine.save(folder.path());
      return last.averaging.bytes_sent < last.averaging_fp32_bytes;
    };
    expect(!go_on(engine_with(adamw({.lr = 0.02})), 0, 6), "adamw compresses nothing");
    expect(go_on(engine_with(onebit_adam({.lr = 0.02, .freeze_step = 4})), 6, 9), "past its freeze at once");
    expect(!go_on(engine_with(adamw({.lr = 0.02})), 9, 10), "adamw compresses nothing");
  });
}

// The errors of all parameters side by side, as a checkpoint has them.
struct SavedErrors {
  std::vector<Tensor> worker;  // by data rank
  Tensor server;
  Tensor mean_worker() const {
    Tensor sum = at::zeros_like(worker[0]);
    for (const Tensor& one : worker) sum += one;
    return sum / static_cast<double>(worker.size());
  }
};

SavedErrors read_errors(const std::string& folder, std::int64_t step, std::int64_t replicas) {
  const std::string root = folder + "/step-0000000" + std::to_string(step) + "/";
  const std::vector<std::pair<std::string, std::vector<std::string>>> files{
      {"wte", {"wte.weight"}},
      {"layers.1", {"layers.1.weight", "layers.1.bias"}},
      {"layers.3", {"layers.3.weight", "layers.3.bias"}}};
  const auto read = [&](const std::string& suffix, const std::string& state) {
    std::vector<Tensor> flat;
    for (const auto& [file, names] : files) {
      const TensorFile opened(root + file + suffix + ".safetensors");
      for (const std::string& name : names) flat.push_back(opened.read(name + ":" + state).reshape({-1}));
    }
    return at::cat(flat).to(at::kDouble);
  };
  SavedErrors errors;
  errors.server = read("", "server_error");
  for (std::int64_t replica = 0; replica < replicas; ++replica) {
    errors.worker.push_back(read(".replica-" + std::to_string(replica), "worker_error"));
  }
  return errors;
}

// Resumes what `from` holds in a layout and saves it to `to`, untouched.
void move_checkpoint(const Case& run, const std::string& from, const std::string& to, std::int64_t step) {
  train_ranks(run, step, [&](Engine& engine, const Mesh&, const StepResult&) {
    if (engine.step() > 0) return;
    expect(engine.resume(from), "nothing to resume");
    engine.save(to);
  });
}

TEST(OnebitAdam, KeepsItsErrorsThroughCheckpointsFrom4To2To4DataRanks) {
  constexpr std::int64_t kStep = 7;
  for (const std::int64_t pipe : {1, 2}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const testing_support::TemporaryFolder folder;
      const Case four{.layout = {.pipe = pipe, .data = 4}, .dtype = dtype},
          two{.layout = {.pipe = pipe, .data = 2}, .dtype = dtype};
      train_ranks(four, kStep, [&](Engine& engine, const Mesh&, const StepResult&) {
        if (engine.step() == kStep) engine.save(folder.file("four"));
      });
      move_checkpoint(two, folder.file("four"), folder.file("two"), kStep);
      move_checkpoint(four, folder.file("two"), folder.file("again"), kStep);
      const SavedErrors first = read_errors(folder.file("four"), kStep, 4),
                        second = read_errors(folder.file("two"), kStep, 2),
                        third = read_errors(folder.file("again"), kStep, 4);
      EXPECT_FALSE(at::equal(first.worker[0], first.worker[1]));
      EXPECT_GT(first.server.abs().min().item<double>(), 0.0);
      const double rounding = (dtype == at::kFloat ? 6e-8 : 2e-16) * first.mean_worker().abs().max().item<double>();
      EXPECT_LE((first.mean_worker() - second.mean_worker()).abs().max().item<double>(), rounding);
      EXPECT_TRUE(at::equal(second.mean_worker(), third.mean_worker()));
      EXPECT_TRUE(at::equal(first.server, second.server));
      EXPECT_TRUE(at::equal(first.server, third.server));
    }
  }
}

TEST(OnebitAdam, SavesTheErrorsOfTheSimulation) {
  const testing_support::TemporaryFolder folder;
  const Case run{.layout = {.pipe = 2, .data = 3}};
  const Simulation simulation = expect_equals_simulation(run, 7);
  train_ranks(run, 7, [&](Engine& engine, const Mesh&, const StepResult&) {
    if (engine.step() == 7) engine.save(folder.path());
  });
  const SavedErrors saved = read_errors(folder.path(), 7, 3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    std::vector<Tensor> worker;
    for (const SharedScale& one : simulation.shared()) worker.push_back(one.worker[rank]);
    EXPECT_LE((at::cat(worker) - saved.worker[rank]).abs().max().item<double>(), kTolerance);
  }
  std::vector<Tensor> server;
  for (const SharedScale& one : simulation.shared()) server.push_back(one.server);
  EXPECT_LE((at::cat(server) - saved.server).abs().max().item<double>(), kTolerance);
}

TEST(OnebitAdam, AddsAllErrorsToTheNextUpdateWhereOneReplicaIsLeft) {
  run_ranks(1, [](World& world) {
    Tensor values = at::ones({3}, at::kDouble);
    values.mutable_grad() = at::full({3}, 2.0, at::kDouble);
    const auto optimizer = onebit_adam({.beta1 = 0.5, .freeze_step = 2})(
        {{.values = values, .parameters = {{"w", {values}, {}}}}}, world.group());
    optimizer->restore(5);
    const auto states = optimizer->state(0);
    expect(states.size() == 4 && states[2].name == "worker_error" && states[2].of_each_replica &&
               states[3].name == "server_error",
           "states");
    states[0].tensor.fill_(4.0);
    states[1].tensor.fill_(1.0);
    states[2].tensor.fill_(0.25);
    states[3].tensor.fill_(0.125);
    optimizer->restored(0, states);
    expect(optimizer->state(0)[2].tensor.eq(0.375).all().item<bool>(), "kept until then");
    optimizer->step(0.1);
    expect(optimizer->state(0)[0].tensor.eq(0.5 * 4.0 + 0.5 * 2.0 + 0.375).all().item<bool>(), "momentum");
    expect(optimizer->state(0).size() == 2, "nothing is left");
  });
}

TEST(OnebitAdam, RefusesNumbersThatMakeNoSense) {
  const auto text = [](const OnebitAdamOptions& options) {
    return testing_support::error_of([&] { onebit_adam(options); });
  };
  EXPECT_THAT(text({.lr = -1}), HasSubstr("lr is -1"));
  EXPECT_THAT(text({.beta2 = 1}), HasSubstr("0.9 and 1;"));
  EXPECT_THAT(text({.freeze_step = 0}), HasSubstr("freeze_step is 0; expected at least 1"));
  Case run{.layout = {.data = 2}};
  run.options.momentum_mask = [](const Parameter&) { return at::ones({2}); };
  EXPECT_THAT(testing_support::error_of([&] { record(run, 1); }),
              HasSubstr("the momentum mask of wte.weight is [2], the parameter [7,6]"));
}

}  // namespace onebit

}  // namespace
}  // namespace espalier
