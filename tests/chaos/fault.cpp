// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/fault.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <thread>

#include "espalier/plan/seed.hpp"
#include "tests/chaos/values.hpp"

namespace espalier::chaos {
namespace {

using std::chrono::microseconds;

// The step with other sizes, such that the victim sends or expects what the others do not.
std::optional<Step> with_another_shape(const Program& program, const Step& step, std::int64_t victim) {
  if (step.kind == Kind::barrier) return std::nullopt;
  const std::vector<std::int64_t>& ranks = program.groups[step.group].ranks;
  const auto size = static_cast<std::int64_t>(ranks.size());
  const auto me = std::ranges::find(ranks, victim) - ranks.begin();
  Step changed = step;
  while (changed.count < step.count + 20) {
    ++changed.count;
    // What a member tells itself nobody else sees.
    auto in = counts(inputs(step, size, me)), other_in = counts(inputs(changed, size, me));
    auto out = counts(outputs(step, size, me)), other_out = counts(outputs(changed, size, me));
    if (step.kind == Kind::all_to_all_v) in[static_cast<std::size_t>(me)] = other_in[static_cast<std::size_t>(me)] = 0;
    if (step.kind == Kind::all_to_all_v || step.kind == Kind::all_gather_v) {
      out[static_cast<std::size_t>(me)] = other_out[static_cast<std::size_t>(me)] = 0;
    }
    if (in != other_in || out != other_out) return changed;
  }
  return std::nullopt;
}

at::ScalarType another_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return at::kFloat;
    case at::kFloat:
      return at::kDouble;
    case at::kHalf:
      return at::kBFloat16;
    case at::kBFloat16:
      return at::kHalf;
    case at::kLong:
      return at::kInt;
    case at::kInt:
      return at::kLong;
    case at::kShort:
      return at::kByte;
    case at::kChar:
      return at::kByte;
    case at::kByte:
      return at::kChar;
    default:
      return at::kByte;
  }
}

// A step that is not the one given, in which every member sends to all and waits for all.
Step unlike(const Step& step) {
  Step other = step;
  other.kind = step.kind == Kind::all_gather ? Kind::all_reduce : Kind::all_gather;
  other.reduce = ReduceOp::max;
  other.count = std::min<std::int64_t>(step.count, 1000);
  return other;
}

// The next collective after number `from` in the same group.
std::optional<std::size_t> next_in_group(const Program& program, std::size_t from) {
  for (std::size_t i = from + 1; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    if (is_collective(step.kind) && step.group == program.steps[from].group) return i;
  }
  return std::nullopt;
}

bool possible(FaultKind kind, const Program& program, std::size_t number, std::int64_t victim) {
  const Step& step = program.steps[number];
  if (!takes_part(program, step, victim) || program.groups[step.group].ranks.size() == 1) return false;
  switch (kind) {
    case FaultKind::wrong_shape:
      return with_another_shape(program, step, victim).has_value();
    case FaultKind::wrong_dtype:
      return step.kind != Kind::barrier;
    case FaultKind::extra:
      return is_collective(step.kind);
    case FaultKind::skipped:
    case FaultKind::reordered: {
      // Two calls that look the same cannot be told apart by anybody.
      const auto next = next_in_group(program, number);
      return is_collective(step.kind) && next && !same_call(step, program.steps[*next]);
    }
    case FaultKind::none:
    case FaultKind::slow_peer:
    case FaultKind::stop_and_continue:
    case FaultKind::full_disk:
    case FaultKind::no_descriptors:
    case FaultKind::kill:
    case FaultKind::segfault:
    case FaultKind::abort:
    case FaultKind::stop:
    case FaultKind::exception:
      return true;
  }
  return true;
}

// What the signal handler is to do.
std::atomic<int> timer_kind{0};
std::atomic<std::atomic<std::int64_t>*> timer_struck_us{nullptr};
std::atomic<bool> timer_has_struck{false};

extern "C" void on_alarm(int) {
  timer_has_struck.store(true);
  strike(static_cast<FaultKind>(timer_kind.load()), *timer_struck_us.load());
}

}  // namespace

std::string_view to_string(FaultKind kind) {
  switch (kind) {
    case FaultKind::none:
      return "none";
    case FaultKind::slow_peer:
      return "slow peer";
    case FaultKind::stop_and_continue:
      return "stop and continue";
    case FaultKind::full_disk:
      return "full disk";
    case FaultKind::no_descriptors:
      return "no descriptors";
    case FaultKind::kill:
      return "kill";
    case FaultKind::segfault:
      return "segfault";
    case FaultKind::abort:
      return "abort";
    case FaultKind::stop:
      return "stop";
    case FaultKind::exception:
      return "exception";
    case FaultKind::wrong_shape:
      return "wrong shape";
    case FaultKind::wrong_dtype:
      return "wrong dtype";
    case FaultKind::skipped:
      return "skipped";
    case FaultKind::extra:
      return "extra";
    case FaultKind::reordered:
      return "reordered";
  }
  return "?";
}

Fault choose_fault(std::uint64_t seed, Program& program) {
  Random random(derive_seed(seed, "chaos fault"));
  Fault fault{.kind = static_cast<FaultKind>(seed % kNumFaultKinds)};
  if (fault.kind == FaultKind::none) return fault;
  const bool ends_or_stops =
      fault.kind == FaultKind::kill || fault.kind == FaultKind::stop || fault.kind == FaultKind::stop_and_continue;
  fault.while_joining = (fault.kind == FaultKind::no_descriptors && random.chance(0.5)) ||
                        ((ends_or_stops || fault.kind == FaultKind::abort) && random.chance(0.15));
  fault.at_any_instant = ends_or_stops && random.chance(0.5);
  fault.delay = microseconds(fault.at_any_instant ? random.below(std::int64_t{1} << random.between(4, 14)) : 0);
  fault.pause = std::chrono::milliseconds(random.between(1, fault.kind == FaultKind::slow_peer ? 50 : 300));
  fault.descriptors = fault.while_joining ? random.below(12) : 0;
  if (fault.kind == FaultKind::full_disk || (fault.kind == FaultKind::no_descriptors && !fault.while_joining)) {
    const Step save{.kind = Kind::save};
    for (int i = 0; i < 3; ++i) {  // well, ill, well
      const auto where = static_cast<std::ptrdiff_t>(random.below(static_cast<std::int64_t>(program.steps.size()) + 1));
      program.steps.insert(program.steps.begin() + where, save);
      for (std::size_t k = 0; k < program.steps.size(); ++k) {
        Step& step = program.steps[k];
        if (static_cast<std::ptrdiff_t>(k) == where)
          step.settled_by = k;
        else if (static_cast<std::ptrdiff_t>(step.settled_by) >= where)
          ++step.settled_by;
      }
    }
  }
  for (int attempt = 0; attempt < 1000; ++attempt) {
    fault.victim = random.below(program.num_ranks);
    fault.step = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(program.steps.size())));
    if (possible(fault.kind, program, fault.step, fault.victim)) return fault;
  }
  return {};  // a program of groups of one
}

std::vector<std::vector<Step>> steps_of_victim(const Fault& fault, const Program& program) {
  std::vector<std::vector<Step>> steps;
  for (const Step& step : program.steps) steps.push_back({step});
  std::vector<Step>& here = steps[fault.step];
  switch (fault.kind) {
    case FaultKind::wrong_shape:
      here = {*with_another_shape(program, here[0], fault.victim)};
      break;
    case FaultKind::wrong_dtype:
      here[0].dtype = another_dtype(here[0].dtype);
      break;
    case FaultKind::skipped:
      here.clear();
      break;
    case FaultKind::extra:
      here.insert(here.begin(), unlike(here[0]));
      break;
    case FaultKind::reordered:
      std::swap(here, steps[*next_in_group(program, fault.step)]);
      break;
    case FaultKind::none:
    case FaultKind::slow_peer:
    case FaultKind::stop_and_continue:
    case FaultKind::full_disk:
    case FaultKind::no_descriptors:
    case FaultKind::kill:
    case FaultKind::segfault:
    case FaultKind::abort:
    case FaultKind::stop:
    case FaultKind::exception:
      break;
  }
  return steps;
}

Ending ending(const Fault& fault) {
  if (fault.kind == FaultKind::no_descriptors && fault.while_joining) return Ending::either;
  return fault.kind <= FaultKind::no_descriptors ? Ending::well : Ending::badly;
}

std::string describe(const Fault& fault) {
  if (fault.kind == FaultKind::none) return "no fault";
  std::string where = fault.while_joining ? "while joining" : fmt::format("at step {}", fault.step);
  if (fault.at_any_instant) where += fmt::format(" and {} us", fault.delay.count());
  return fmt::format("{} of rank {} {}", to_string(fault.kind), fault.victim, where);
}

std::int64_t now_us() { return std::chrono::steady_clock::now().time_since_epoch() / microseconds(1); }

void strike(FaultKind kind, std::atomic<std::int64_t>& struck_us) {
  struck_us.store(now_us());
  switch (kind) {
    case FaultKind::kill:
      ::kill(::getpid(), SIGKILL);
      break;
    case FaultKind::segfault: {
      volatile int* volatile nowhere = nullptr;
      *nowhere = 1;
      break;
    }
    case FaultKind::abort:
      std::abort();
    case FaultKind::stop:
    case FaultKind::stop_and_continue:
      ::kill(::getpid(), SIGSTOP);
      break;
    case FaultKind::exception:
      throw std::runtime_error("chaos: a step throws");
    case FaultKind::none:
    case FaultKind::slow_peer:
    case FaultKind::full_disk:
    case FaultKind::no_descriptors:
    case FaultKind::wrong_shape:
    case FaultKind::wrong_dtype:
    case FaultKind::skipped:
    case FaultKind::extra:
    case FaultKind::reordered:
      break;
  }
}

void strike_later(FaultKind kind, microseconds delay, std::atomic<std::int64_t>& struck_us) {
  timer_struck_us.store(&struck_us);
  timer_kind.store(static_cast<int>(kind));
  struct sigaction action{};
  action.sa_handler = on_alarm;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGALRM, &action, nullptr);
  itimerval timer{};
  timer.it_value.tv_usec = static_cast<suseconds_t>(std::max<std::int64_t>(delay.count(), 1));
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

void await_strike() {
  while (!timer_has_struck.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace espalier::chaos
