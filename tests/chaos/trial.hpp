// SPDX-License-Identifier: Apache-2.0
// One seed: a random program on ranks that are processes, one fault, and the judgement of how everybody ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/chaos/fault.hpp"
#include "tests/chaos/program.hpp"

namespace espalier::chaos {

struct Trial {
  std::uint64_t seed = 0;
  Program program;
  Fault fault;
  bool from_environment = false;  // World::from_environment, as espalier run starts ranks; or host over a small arena
  std::int64_t arena_bytes = 0;
  std::int64_t timeout_ms = 0;   // of the world: joining, closing, and saving
  std::int64_t patience_ms = 0;  // of a wait
};

// steps: of the program, about.
Trial make_trial(std::uint64_t seed, std::int64_t num_steps);

struct Verdict {
  std::vector<std::string> complaints;  // empty: all is as it must be
  double noticed_ms = -1;               // from the fault until the last survivor knew; -1: there was nothing to know
  std::vector<std::string> last_words;  // of each rank
};

// Forks the ranks from this process, which must have a single thread, and waits for them; bounded.
Verdict run_trial(const Trial& trial);

// "seed 17: kill of rank 2 at step 12; 4 ranks, 40 steps, ...".
std::string describe(const Trial& trial);

}  // namespace espalier::chaos
