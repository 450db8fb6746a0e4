// SPDX-License-Identifier: Apache-2.0
// What the tensors of a step hold on every member, before and after, by plain arithmetic on small whole numbers: all
// sums and products are exact in every dtype until they are rounded once.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/chaos/program.hpp"

namespace espalier::chaos {

// Elements from one member, or reduced from all: `pattern` over and over. The period is prime, so that no piece can be
// mistaken for the one beside it.
struct Part {
  static constexpr std::int64_t kPeriod = 1021;
  std::int64_t count = 0;
  std::vector<std::int64_t> pattern = {};  // its first min(count, kPeriod) elements
  std::int64_t divisor = 1;                // of the rounded pattern
};

// What `member` of `size` brings to the step: one part, or one for each member. Empty: nothing.
std::vector<Part> inputs(const Step& step, std::int64_t size, std::int64_t member);
// What it then must have, in the same way.
std::vector<Part> outputs(const Step& step, std::int64_t size, std::int64_t member);

std::vector<std::int64_t> counts(const std::vector<Part>& parts);

// The parts one after another as elements of `dtype`.
std::vector<char> bytes_of(const std::vector<Part>& parts, at::ScalarType dtype);

}  // namespace espalier::chaos
