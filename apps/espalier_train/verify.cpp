// SPDX-License-Identifier: Apache-2.0
// `espalier verify`: one step of the reference GPT in a layout (ranks as threads) and on one rank, on the same random
// bytes, compared by name: loss, gradient norm, every gradient, every updated weight.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>

#include "apps/espalier_train/commands.hpp"
#include "apps/espalier_train/options.hpp"
#include "espalier/base/check.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/plan/seed.hpp"
#include "espalier/train/engine.hpp"
#include "espalier/train/norm.hpp"

namespace espalier::command {
namespace {

constexpr std::int64_t kSequences = 2;  // in a micro-batch
constexpr double kClip = 1.0;
constexpr int kDiffers = 1;  // exit code

struct Outcome {
  double loss = 0.0;
  double grad_norm = 0.0;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> weights;
};

MicroBatch random_bytes(const ModelOptions& model, std::int64_t index) {
  auto generator = at::detail::createCPUGenerator(derive_seed(model.seed, "verify", {index}));
  const at::Tensor bytes = at::randint(0, 256, {kSequences, model.context + 1}, generator, at::kLong);
  return {{bytes.narrow(1, 0, model.context).contiguous()}, {bytes.narrow(1, 1, model.context).contiguous()}};
}

// One step over `layout`, `micro_batches` a data rank; data ranks take neighbouring runs of the same random
// micro-batches.
Outcome one_step(const ModelOptions& model, const LayoutSpec& layout, std::int64_t micro_batches) {
  Outcome outcome;
  std::mutex mutex;
  run_ranks(
      layout.pipe * layout.data,
      [&](World& world) {
        const Mesh mesh(world, layout);
        const PartitionMethod partition = layout.pipe == 1 ? by_layers() : model.partition_method();
        const PipelineModule module(mesh, gpt_layers(model.gpt()),
                                    {.partition = partition,
                                     .seed = model.seed,
                                     .recompute_every = model.recompute_every,
                                     .point_to_point = point_to_point_by_name(model.point_to_point)});
        Engine engine(mesh, module, adamw({.lr = 1e-3, .beta2 = 0.95, .weight_decay = 0.1}),
                      {.micro_batches = micro_batches,
                       .schedule = schedule_by_name(model.schedule),
                       .loss = next_token_loss,
                       .max_grad_norm = kClip});
        const std::int64_t first = mesh.coordinate("data") * micro_batches;
        const StepResult result = engine.train_batch([&](std::int64_t m) { return random_bytes(model, first + m); });
        const std::lock_guard lock(mutex);
        outcome.loss = result.loss;
        outcome.grad_norm = result.grad_norm;
        for (const Parameter& parameter : module.parameters()) {
          outcome.gradients[parameter.name] = parameter.tensor().grad().clone();
          outcome.weights[parameter.name] = parameter.tensor().detach().clone();
        }
      },
      model.world());
  return outcome;
}

double relative(const at::Tensor& a, const at::Tensor& b, double floor) {
  return (a - b).abs().max().item<double>() / std::max(a.abs().max().item<double>(), floor);
}

double largest(const std::map<std::string, at::Tensor>& tensors) {
  double value = 0.0;
  for (const auto& [name, tensor] : tensors) value = std::max(value, tensor.abs().max().item<double>());
  return value;
}

void verify(const ModelOptions& model) {
  const LayoutSpec layout = model.layout_spec();
  at::set_num_threads(model.threads);
  const Outcome one = one_step(model, {}, model.micro_batches * layout.data);
  const Outcome many = one_step(model, layout, model.micro_batches);
  const double tolerance = model.precision == "fp64" ? 1e-10 : 1e-5;
  // A tensor whose values are rounding noise (a key's bias has a gradient of zero) is measured against the largest
  // one's.
  const double gradient_floor = 1e-3 * largest(one.gradients), weight_floor = 1e-3 * largest(one.weights);

  fmt::print("{} against one rank, {}, {} sequences: differences relative to the largest value of each tensor\n\n",
             model.layout, model.precision, kSequences * model.micro_batches * layout.data);
  fmt::print("{:<28} {:>14} {:>10} {:>10}\n", "parameter", "shape", "gradient", "updated");
  double worst =
      std::max(std::abs(one.loss - many.loss) / one.loss, std::abs(one.grad_norm - many.grad_norm) / one.grad_norm);
  for (const auto& [name, gradient] : one.gradients) {
    const double in_gradient = relative(gradient, many.gradients.at(name), gradient_floor);
    const double in_weight = relative(one.weights.at(name), many.weights.at(name), weight_floor);
    worst = std::max({worst, in_gradient, model.precision == "fp64" ? in_weight : 0.0});
    fmt::print("{:<28} {:>14} {:>10.1e} {:>10.1e}\n", name, fmt::format("{}", fmt::join(gradient.sizes(), "x")),
               in_gradient, in_weight);
  }
  fmt::print("\nloss {:.9f} against {:.9f}, gradient norm {:.9f} against {:.9f}\n", many.loss, one.loss, many.grad_norm,
             one.grad_norm);
  const bool equal = worst <= tolerance;
  fmt::print("{}: {} parameters, worst {:.1e}, allowed {:.0e}\n", equal ? "equal" : "DIFFERENT", one.gradients.size(),
             worst, tolerance);
  if (!equal) throw CLI::RuntimeError(kDiffers);
}

}  // namespace

void add_verify(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("verify", "Compare a layout with one process: losses, gradients, norm, weights");
  const auto model = std::make_shared<ModelOptions>();
  model->add_to(*sub);
  sub->callback([model] {
    const auto ranks = model->check();
    ESPALIER_CHECK_CONFIG(ranks.has_value(),
                          "verify: layout {}: give every size; it runs all ranks as threads of one process",
                          model->layout);
    verify(*model);
  });
}

}  // namespace espalier::command
