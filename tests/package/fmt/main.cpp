// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdlib>

#include "espalier/comm/world.hpp"

int main() {
  const auto world = espalier::World::from_environment();
  fmt::print("{} of {}, with {} fmt\n", world.rank(), world.size(), WHOSE);
#ifdef OTHER_PROGRAM
  std::fflush(stdout);
  return std::system(OTHER_PROGRAM);
#endif
}
