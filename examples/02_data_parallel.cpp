// SPDX-License-Identifier: Apache-2.0
// Data parallel training of a torch::nn module: each rank sees its own samples, all hold the same weights.
//   espalier run -n 2 -- ./02_data_parallel
#include <ATen/Context.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>

#include "espalier/train/engine.hpp"

namespace esp = espalier;
namespace nn = torch::nn;

int main() {
  const esp::World world = esp::World::from_environment();
  const esp::Mesh mesh(world, {.data = esp::kRest});

  at::manual_seed(1);  // of the initial weights: the same on every rank and in every run
  const nn::Sequential net(nn::Linear(2, 16), nn::Tanh(), nn::Linear(16, 1));
  const esp::PipelineModule model(mesh, {esp::layer_of(net.ptr())});
  esp::Engine engine(mesh, model, esp::adamw({.lr = 1e-2}),
                     {.loss = [](const esp::Tensors& outputs, const esp::Tensors& targets) {
                       return (outputs[0] - targets[0]).square().mean();
                     }});

  // Learn x * y on points that differ from rank to rank.
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1000 + mesh.coordinate("data"));
  double loss = 0.0;
  for (int step = 0; step < 300; ++step) {
    const at::Tensor points = at::rand({64, 2}, generator) * 2 - 1;
    const at::Tensor products = points.prod(1, /*keepdim=*/true);
    loss = engine.train_batch([&](std::int64_t) { return esp::MicroBatch{{points}, {products}}; }).loss;
  }
  if (world.rank() == 0) std::printf("mean squared error over %ld ranks after 300 steps: %.4f\n", world.size(), loss);
  return loss < 0.05 ? 0 : 1;
}
