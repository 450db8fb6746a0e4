// SPDX-License-Identifier: Apache-2.0
// A pipeline of two stages with an embedding that its first and last layer share, times data parallelism.
//   espalier run -n 4 -- ./03_pipeline_tied
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdio>

#include "espalier/train/engine.hpp"

namespace esp = espalier;
namespace nn = torch::nn;
using at::Tensor;

// Any module of your own is a layer.
struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t hidden) {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({hidden})));
    up = register_module("up", nn::Linear(hidden, 4 * hidden));
    down = register_module("down", nn::Linear(4 * hidden, hidden));
  }
  Tensor forward(const Tensor& x) { return x + down->forward(at::gelu(up->forward(norm->forward(x)))); }

  nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

int main() {
  constexpr std::int64_t kVocab = 32, kHidden = 32;
  std::vector<esp::LayerSpec> layers{esp::tied<nn::Embedding>("wte", kVocab, kHidden)};
  for (int i = 0; i < 4; ++i) layers.push_back(esp::layer<Block>(kHidden));
  layers.push_back(esp::tied_use<nn::Embedding>(
      "wte", [](nn::EmbeddingImpl& e, const Tensor& x) { return x.matmul(e.weight.t()); }));

  const esp::World world = esp::World::from_environment();
  const esp::Mesh mesh(world, {.pipe = world.size() > 1 ? 2 : 1, .data = esp::kRest});
  const esp::PipelineModule model(mesh, layers, {.partition = esp::by_parameters(), .seed = 1234});
  esp::Engine engine(mesh, model, esp::adamw({.lr = 3e-3}),
                     {.micro_batches = 4, .loss = [](const esp::Tensors& outputs, const esp::Tensors& targets) {
                        return at::cross_entropy_loss(outputs[0], targets[0]);
                      }});

  // Learn the successor of each token.
  const auto batch = [](std::int64_t micro_batch) {
    const Tensor tokens = (at::arange(16, at::kLong) * 5 + micro_batch) % kVocab;
    return esp::MicroBatch{{tokens}, {(tokens + 1) % kVocab}};
  };
  esp::StepResult result;
  for (int step = 0; step < 100; ++step) {
    result = engine.train_batch(batch);
    if (world.rank() == 0 && step % 25 == 0) std::printf("step %3d  loss %.4f\n", step, result.loss);
  }
  if (world.rank() == 0) std::printf("step 100  loss %.4f\n", result.loss);
  return result.loss < 0.5 ? 0 : 1;
}
