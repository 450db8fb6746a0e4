// SPDX-License-Identifier: Apache-2.0
// One rank of a GptRun as a process: gpt_rank FOLDER LAYOUT SCHEDULE MICRO_BATCHES RECOMPUTE STEPS DTYPE. Writes what
// the rank saw to FOLDER/rank-N.
#include <ATen/Parallel.h>

#include <cstdlib>
#include <string>

#include "espalier/comm/world.hpp"
#include "tests/train/gpt_run.hpp"

int main(int argc, char** argv) {
  using namespace espalier;
  if (argc != 8) return EXIT_FAILURE;
  at::set_num_threads(1);
  const LayoutSpec layout = Layout::parse(argv[2]);
  const testing_support::GptRun run{.layout = layout,
                                    .schedule = argv[3],
                                    .micro_batches = std::stol(argv[4]),
                                    .recompute_every = std::stol(argv[5]),
                                    .steps = std::stol(argv[6]),
                                    .global_micro_batches = std::stol(argv[4]) * layout.data,
                                    .dtype = std::string(argv[7]) == "fp32" ? at::kFloat : at::kDouble};
  World world = World::from_environment();
  testing_support::write_result(testing_support::train_rank(world, run),
                                std::string(argv[1]) + "/rank-" + std::to_string(world.rank()));
}
