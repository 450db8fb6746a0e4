// SPDX-License-Identifier: Apache-2.0
// Private: child processes that are watched, whose output is passed on, and that end together.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "espalier/plan/launch/child_process.hpp"
#include "espalier/plan/launch/line_relay.hpp"

namespace espalier::detail {

// With which programs that use Espalier as its own commands do end when they have lost a peer.
inline constexpr int kCommErrorCode = 3;

// Signals come through a descriptor instead of handlers; the destructor restores everything.
class SignalQueue {
 public:
  SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  int descriptor() const { return descriptor_; }
  const sigset_t& mask_before() const { return before_; }
  // The next signal, or 0.
  int next();

 private:
  sigset_t before_ = {};
  sighandler_t old_child_ = SIG_DFL;
  sighandler_t old_pipe_ = SIG_DFL;
  int descriptor_ = -1;
};

class Supervisor {
 public:
  struct Policy {
    std::string speaker;  // who complains when a child fails
    // "rank 3 of 4 (pid 17)"
    std::function<std::string(std::size_t child, pid_t pid)> name_of;
    std::chrono::milliseconds notice_time{500};     // from a failure to SIGTERM for the others
    std::chrono::milliseconds terminate_time{800};  // from SIGTERM to SIGKILL, after a failure
    std::chrono::milliseconds stop_time{800};       // the same after a signal to us
    std::set<int> explained_codes = {};             // exit codes that come with a text of the child's own
    int lifeline = -1;                              // a descriptor whose end is an end for all, as SIGHUP is; -1: none
  };

  // Starts all of them, or none and throws ConfigError.
  Supervisor(const Policy& policy, std::vector<ChildSpec> children);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();

  // Blocks until all have ended. 0 when all returned it, else the exit code of the one that failed
  // first, or 128 + n for a signal n that ended it or this process.
  int run();

 private:
  struct Started {
    pid_t pid;
    std::optional<int> status = {};  // as waitpid gives it, once it has ended
  };
  enum class Phase { running, noticing, terminating, killing };

  std::size_t living() const;
  void wait_for_something();
  bool lifeline_is_cut() const;
  void take_signals();
  void interrupt(int number);
  void reap();
  void record(Started& child, int status);
  void escalate();
  void enter(Phase phase, std::chrono::milliseconds time);
  void terminate();
  void kill_all();
  void signal_living(int number);
  void give_verdict();
  void leave_nothing();
  void pass_on_last_output();

  const Policy policy_;
  SignalQueue signals_;
  Guard guard_;  // before the first child, so that it holds none of their pipes
  LineRelay relay_;
  std::vector<Started> children_;
  Phase phase_ = Phase::running;
  std::chrono::steady_clock::time_point next_step_ = {};
  std::optional<std::size_t> culprit_;  // among the children that failed by themselves
  bool verdict_given_ = false;
  int interrupted_by_ = 0;
};

}  // namespace espalier::detail
