// SPDX-License-Identifier: Apache-2.0
// What goes wrong in a program, on one rank, chosen by the seed: where, how, and what the others must see of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/chaos/program.hpp"

namespace espalier::chaos {

enum class FaultKind {
  none,
  slow_peer,
  stop_and_continue,
  full_disk,
  no_descriptors,  // all ranks end well
  kill,
  segfault,
  abort,
  stop,
  exception,  // the victim ends badly
  wrong_shape,
  wrong_dtype,
  skipped,
  extra,
  reordered,  // its calls do not fit the others'
};
inline constexpr int kNumFaultKinds = static_cast<int>(FaultKind::reordered) + 1;

std::string_view to_string(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::none;
  std::int64_t victim = -1;     // world rank; -1: nobody
  std::size_t step = 0;         // of the program: it strikes before this one
  bool while_joining = false;   // it strikes before the victim has a world
  bool at_any_instant = false;  // not at the step itself, but so much later, by a timer
  std::chrono::microseconds delay{0};
  std::chrono::milliseconds pause{0};  // how long a stopped victim stands still, a slow one sleeps
  std::int64_t descriptors = 0;        // how many more the victim may open
};

// Every kind in turn as seeds go up; the rest is random. Changes the program where the fault needs it (steps that
// save).
Fault choose_fault(std::uint64_t seed, Program& program);

// What the victim does in place of each step of the program: that step, nothing, another, or two.
std::vector<std::vector<Step>> steps_of_victim(const Fault& fault, const Program& program);

enum class Ending { well, badly, either };
// How all ranks must end, but for the victim where that does not survive.
Ending ending(const Fault& fault);
// "kill of rank 2 at step 17".
std::string describe(const Fault& fault);

// Ends or stops this process in the fault's way, now; returns when a stopped one goes on. Says when in `struck_us`.
void strike(FaultKind kind, std::atomic<std::int64_t>& struck_us);
// The same by a timer, once in a process.
void strike_later(FaultKind kind, std::chrono::microseconds delay, std::atomic<std::int64_t>& struck_us);
// Waits until the timer has struck.
void await_strike();
// Microseconds of the clock that all processes of a host share.
std::int64_t now_us();

}  // namespace espalier::chaos
