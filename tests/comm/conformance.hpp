// SPDX-License-Identifier: Apache-2.0
// What every backend must do, stated once: bodies that all ranks of a world run and that throw when something is wrong.
// conformance_cases.cpp and progress_cases.cpp hold them; conformance_test.cpp runs them over each backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/comm/world.hpp"

namespace espalier::conformance {

// What a backend promises beyond the results.
struct Promises {
  bool ordered_sums = true;               // floating sums in the order of group ranks, to the last bit
  bool small_arenas = true;               // messages go through shared memory, of which there may be little
  bool names_mismatch = true;             // ranks that call different collectives learn both
  bool names_mismatched_messages = true;  // so do a sender and a receiver
  bool free_order = true;                 // ranks may post operations of several groups in different orders
  bool names_leavers = true;              // a rank that has left is named to those that wait for it
};

struct Case {
  std::string name;
  std::vector<std::int64_t> sizes;  // of the world
  std::function<void(World&, const Promises&)> body;
  std::function<bool(const Promises&)> applies = [](const Promises&) { return true; };
  std::chrono::milliseconds timeout{30'000};
  std::int64_t arena_bytes = std::int64_t{64} << 20;  // host: small ones make large messages cheap to test
};

const std::vector<Case>& cases();  // all of them

std::vector<Case> progress_cases();  // of progress_cases.cpp, among them

}  // namespace espalier::conformance
