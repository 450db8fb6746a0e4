// SPDX-License-Identifier: Apache-2.0
// A long random program without a fault: every result right, and nothing that grows.
#pragma once

#include <cstdint>

namespace espalier::chaos {

struct SoakOptions {
  std::int64_t num_operations = 10'000;
  std::int64_t num_ranks = 8;
  bool as_threads = true;
  std::uint64_t seed = 1;
};

// Prints what it found; the exit code.
int soak(const SoakOptions& options);

}  // namespace espalier::chaos
