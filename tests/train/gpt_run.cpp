// SPDX-License-Identifier: Apache-2.0
#include "tests/train/gpt_run.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>

#include <mutex>
#include <stdexcept>

#include "espalier/comm/mesh.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/models/gpt/gpt.hpp"
#include "espalier/parallel/pipeline/build_layer.hpp"
#include "espalier/plan/seed.hpp"
#include "espalier/sharding/tensor_file.hpp"
#include "espalier/train/engine.hpp"
#include "espalier/train/norm.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier::testing_support {
namespace {

constexpr std::uint64_t kSeed = 7;
constexpr std::int64_t kVocab = 17;
constexpr std::int64_t kContext = 8;
constexpr double kLr = 1e-3;

GptOptions model_options(const GptRun& run) {
  return {.vocab = kVocab, .layers = 2, .hidden = 16, .heads = 2, .context = kContext, .dtype = run.dtype};
}

// With inner uses of the embedding: x + x W' W, a further gradient for it from the middle of the model.
std::vector<LayerSpec> layers_of(const GptRun& run) {
  std::vector<LayerSpec> layers = gpt_layers(model_options(run));
  for (std::int64_t use = 0; use < run.inner_tied_uses; ++use) {
    layers.insert(layers.begin() + 3 + 2 * use,
                  tied_use<torch::nn::Embedding>("wte", [](torch::nn::EmbeddingImpl& wte, const at::Tensor& x_bsd) {
                    return x_bsd + x_bsd.matmul(wte.weight.t()).matmul(wte.weight);
                  }));
  }
  return layers;
}

// Micro-batch `index` of all data ranks' at a step: two sequences of random tokens.
at::Tensor tokens(std::int64_t step, std::int64_t index) {
  auto generator = at::detail::createCPUGenerator(derive_seed(kSeed, "data", {step, index}));
  return at::randint(0, kVocab, {2, kContext + 1}, generator, at::kLong);
}

double lr_at(std::int64_t step) { return kLr * static_cast<double>(step + 1); }

at::Tensor inputs_of(const at::Tensor& sequence) { return sequence.narrow(1, 0, kContext).contiguous(); }
at::Tensor targets_of(const at::Tensor& sequence) { return sequence.narrow(1, 1, kContext).contiguous(); }

// Adds what one rank saw to what others did.
void merge(ReferenceResult& into, const ReferenceResult& from) {
  const auto merge_tensors = [](NamedTensors& tensors, const NamedTensors& more) {
    for (const auto& [name, tensor] : more) {
      const auto [there, inserted] = tensors.emplace(name, tensor);
      if (!inserted && !at::equal(there->second, tensor)) throw std::runtime_error("two copies of " + name + " differ");
    }
  };
  if (!into.losses.empty() && (into.losses != from.losses || into.norms != from.norms)) {
    throw std::runtime_error("two ranks see different losses or norms");
  }
  into.losses = from.losses;
  into.norms = from.norms;
  merge_tensors(into.first_gradients, from.first_gradients);
  merge_tensors(into.final_weights, from.final_weights);
}

ReferenceResult read_result(const std::string& path) {
  const TensorFile file(path);
  const auto numbers = [&](const char* name) {
    const at::Tensor tensor = file.read(name);
    return std::vector<double>(tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel());
  };
  ReferenceResult result;
  result.losses = numbers("losses");
  result.norms = numbers("norms");
  for (const TensorInfo& info : file.tensors()) {
    const std::size_t colon = info.name.find(':');
    if (info.name.starts_with("gradient:")) result.first_gradients[info.name.substr(colon + 1)] = file.read(info.name);
    if (info.name.starts_with("weight:")) result.final_weights[info.name.substr(colon + 1)] = file.read(info.name);
  }
  return result;
}

}  // namespace

std::string GptRun::name() const {
  return fmt::format("pipe={} data={} tensor={} {} micro-batches={} recompute={} inner tied uses={} p2p={}{}",
                     layout.pipe, layout.data, layout.tensor, schedule, micro_batches, recompute_every, inner_tied_uses,
                     to_string(point_to_point), partition_activations ? " in parts" : "");
}

ReferenceResult train_serially(const GptRun& run) {
  const auto specs = layers_of(run);
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  NamedTensors parameters;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!specs[i].build) {
      modules.push_back(modules.front());  // the output uses the embedding
      continue;
    }
    modules.push_back(detail::build_layer(specs[i], derive_seed(kSeed, "layer", {static_cast<std::int64_t>(i)}), {}));
    const std::string prefix = specs[i].tied_key.empty() ? "layers." + std::to_string(i) : specs[i].tied_key;
    for (const auto& parameter : modules.back()->named_parameters()) {
      parameters[prefix + "." + parameter.key()] = parameter.value();
    }
  }
  std::vector<std::function<Tensors(const Tensors&)>> layers;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    layers.push_back(
        [forward = specs[i].forward, module = modules[i]](const Tensors& at) { return forward(*module, at); });
  }
  const auto micro_batches = [&](std::int64_t step) {
    std::vector<ReferenceMicroBatch> all;
    for (std::int64_t i = 0; i < run.global_micro_batches; ++i) {
      all.push_back({{inputs_of(tokens(step, i))}, {targets_of(tokens(step, i))}});
    }
    return all;
  };
  return reference_train(parameters, in_sequence(layers, next_token_loss), micro_batches, run.steps,
                         {.lr = lr_at, .max_norm = run.max_grad_norm});
}

ReferenceResult train_rank(World& world, const GptRun& run) {
  const Mesh mesh(world, run.layout);
  const PipelineModule module(mesh, layers_of(run),
                              {.partition = by_layers(),
                               .seed = kSeed,
                               .recompute_every = run.recompute_every,
                               .point_to_point = run.point_to_point,
                               .partition_activations = run.partition_activations});
  Engine engine(mesh, module, adamw({.beta2 = 0.95, .weight_decay = 0.1}),
                {.micro_batches = run.micro_batches,
                 .schedule = schedule_by_name(run.schedule),
                 .loss = next_token_loss,
                 .lr = lr_at,
                 .max_grad_norm = run.max_grad_norm});
  const std::int64_t first = mesh.coordinate("data") * run.micro_batches;
  ReferenceResult result;
  for (std::int64_t step = 0; step < run.steps; ++step) {
    const StepResult at = engine.train_batch([&](std::int64_t micro_batch) -> MicroBatch {
      const at::Tensor sequence = tokens(step, first + micro_batch);
      return {{inputs_of(sequence)}, {targets_of(sequence)}};
    });
    result.losses.push_back(at.loss);
    result.norms.push_back(at.grad_norm);
    if (step > 0) continue;
    const double scale = clip_scale(at.grad_norm, run.max_grad_norm);
    for (const Parameter& parameter : module.parameters()) {
      result.first_gradients[parameter.name] = parameter.tensor().grad().clone() / scale;
    }
  }
  module.verify_tied();
  for (const Parameter& parameter : module.parameters())
    result.final_weights[parameter.name] = parameter.tensor().detach().clone();
  return result;
}

ReferenceResult train_in_threads(const GptRun& run) {
  return train_in_threads(run, [](std::int64_t num_ranks, const auto& body) { run_ranks(num_ranks, body); });
}

ReferenceResult train_in_threads(const GptRun& run, const Runner& runner) {
  std::mutex mutex;
  ReferenceResult merged;
  runner(run.layout.pipe * run.layout.data * run.layout.tensor, [&](World& world) {
    const ReferenceResult mine = train_rank(world, run);
    const std::lock_guard lock(mutex);
    merge(merged, mine);
  });
  return merged;
}

ReferenceResult train_in_processes(const GptRun& run, const std::string& backend) {
  const TemporaryFolder folder;
  const std::int64_t num_ranks = run.layout.pipe * run.layout.data;
  testing_support::Program program(
      {ESPALIER_TEST_BIN "/espalier", "run", "-n", std::to_string(num_ranks), "--", ESPALIER_TEST_BIN "/gpt_rank",
       folder.path(), fmt::format("pipe={},data={}", run.layout.pipe, run.layout.data), run.schedule,
       std::to_string(run.micro_batches), std::to_string(run.recompute_every), std::to_string(run.steps),
       run.dtype == at::kFloat ? "fp32" : "fp64"},
      {{"ESPALIER_BACKEND", backend}});
  if (program.wait(std::chrono::seconds(120)) != 0) throw std::runtime_error(program.output() + program.error());
  ReferenceResult merged;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank)
    merge(merged, read_result(folder.file("rank-" + std::to_string(rank))));
  return merged;
}

void write_result(const ReferenceResult& result, const std::string& path) {
  std::vector<NamedTensor> tensors{{"losses", at::tensor(result.losses, at::kDouble)},
                                   {"norms", at::tensor(result.norms, at::kDouble)}};
  for (const auto& [name, tensor] : result.first_gradients) tensors.push_back({"gradient:" + name, tensor});
  for (const auto& [name, tensor] : result.final_weights) tensors.push_back({"weight:" + name, tensor});
  write_tensor_file(path, tensors);
}

Difference largest_difference(const ReferenceResult& a, const ReferenceResult& b) {
  Difference worst{-1.0, "nothing"};
  const auto note = [&](double relative, const std::string& where) {
    if (!(relative <= worst.relative)) worst = {relative, where};  // also when it is not a number
  };
  const auto scalars = [&](const std::vector<double>& x, const std::vector<double>& y, const std::string& what) {
    if (x.size() != y.size()) throw std::runtime_error("different numbers of steps");
    for (std::size_t i = 0; i < x.size(); ++i)
      note(std::abs(x[i] - y[i]) / std::abs(x[i]), fmt::format("{} of step {}", what, i));
  };
  const auto tensors = [&](const NamedTensors& x, const NamedTensors& y, const std::string& what) {
    if (x.size() != y.size())
      throw std::runtime_error(fmt::format("{}: {} against {} parameters", what, x.size(), y.size()));
    double largest = 0.0;
    for (const auto& [name, tensor] : x) largest = std::max(largest, tensor.abs().max().item<double>());
    for (const auto& [name, tensor] : x) {
      const double scale = std::max(tensor.abs().max().item<double>(), 1e-3 * largest);
      note((tensor - y.at(name)).abs().max().item<double>() / scale, what + " of " + name);
    }
  };
  scalars(a.losses, b.losses, "loss");
  scalars(a.norms, b.norms, "norm");
  tensors(a.first_gradients, b.first_gradients, "first gradient");
  tensors(a.final_weights, b.final_weights, "weight");
  return worst;
}

}  // namespace espalier::testing_support
