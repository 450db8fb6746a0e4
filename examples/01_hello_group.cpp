// SPDX-License-Identifier: Apache-2.0
// Ranks, a layout, and a sum over one of its groups.
//   espalier run -n 4 -- ./01_hello_group
#include <ATen/Functions.h>

#include <cstdio>

#include "espalier/comm/collectives.hpp"
#include "espalier/comm/mesh.hpp"
#include "espalier/comm/world.hpp"

namespace esp = espalier;

int main() {
  const esp::World world = esp::World::from_environment();
  const esp::Mesh mesh(world, {.data = esp::kRest});

  at::Tensor sum = at::full({1}, static_cast<double>(world.rank()), at::kDouble);
  esp::all_reduce_(sum, mesh.group("data")).wait();
  std::printf("rank %ld of %ld: the ranks of my data group add up to %g\n", world.rank(), world.size(),
              sum.item<double>());
}
