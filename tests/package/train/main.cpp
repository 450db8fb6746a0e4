// SPDX-License-Identifier: Apache-2.0
// Trains a model of its own over a layout, saves, and goes on where it stopped: the program of the README.
#include <torch/nn.h>

#include <cstdio>

#include "espalier/train/engine.hpp"

namespace esp = espalier;
namespace nn = torch::nn;
using at::Tensor;

// Any torch::nn module is a layer.
struct Block : nn::Module {
  explicit Block(int hidden) {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({hidden})));
    up = register_module("up", nn::Linear(hidden, 4 * hidden));
    down = register_module("down", nn::Linear(4 * hidden, hidden));
  }
  Tensor forward(const Tensor& x) { return x + down->forward(at::gelu(up->forward(norm->forward(x)))); }

  nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
};

int main(int argc, char** argv) {
  constexpr int kVocab = 64, kHidden = 32;
  std::vector<esp::LayerSpec> layers{esp::tied<nn::Embedding>("wte", kVocab, kHidden)};
  for (int i = 0; i < 4; ++i) layers.push_back(esp::layer<Block>(kHidden));
  layers.push_back(esp::tied_use<nn::Embedding>(
      "wte", [](nn::EmbeddingImpl& e, const Tensor& x) { return x.matmul(e.weight.t()); }));

  const auto world = esp::World::from_environment();  // espalier run, torchrun, mpirun, srun, or alone
  const esp::Mesh mesh(world, {.pipe = world.size() > 1 ? 2 : 1, .data = esp::kRest});
  const esp::PipelineModule model(mesh, layers, {.partition = esp::by_parameters(), .seed = 1234});
  esp::Engine engine(
      mesh, model, esp::adamw({.lr = 3e-3}),
      {.micro_batches = 4,
       .schedule = esp::one_f_one_b(),
       .loss = [](const esp::Tensors& outputs,
                  const esp::Tensors& targets) { return at::cross_entropy_loss(outputs[0], targets[0]); },
       .max_grad_norm = 1.0});

  const char* folder = argc > 1 ? argv[1] : nullptr;
  if (folder != nullptr) engine.resume(folder);
  esp::StepResult result;
  while (engine.step() < 200) {
    const std::int64_t step = engine.step();
    result = engine.train_batch([&](std::int64_t micro_batch) {  // learn each token's successor
      const std::int64_t first = 16 * (step * 7 + micro_batch * 3 + mesh.coordinate("data"));
      const Tensor tokens = at::arange(first, first + 16, at::kLong) % kVocab;
      return esp::MicroBatch{{tokens}, {(tokens + 1) % kVocab}};
    });
    if (folder != nullptr && engine.step() % 10 == 0) engine.save(folder);
    if (world.rank() == 0 && engine.step() % 50 == 0)
      std::printf("step %3ld  loss %.17g\n", engine.step(), result.loss);
    std::fflush(stdout);
  }
}
