// SPDX-License-Identifier: Apache-2.0
// Private: child processes that cannot outlive this one.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "espalier/plan/launch/environment.hpp"

namespace espalier::detail {

struct ChildSpec {
  std::vector<std::string> command;
  Variables variables = {};
  int standard_input = -1;   // what it reads; -1: nothing
  int kept_descriptor = -1;  // stays open in the child; -1: none but 0, 1 and 2
  sigset_t signal_mask = {};
};

struct Child {
  pid_t pid;   // leads a process group of its own
  int output;  // read end of its standard output
  int error;   // and of its standard error
};

// fork and exec. ConfigError when the program cannot be started.
Child start_child(const ChildSpec& spec);

// A process that does nothing but wait for this one's end and then kills the watched process
// groups, for the case that this process is killed and can do it no more.
class Guard {
 public:
  Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard();  // dismisses it

  pid_t pid() const { return pid_; }
  void watch(pid_t group) { tell(group); }
  void forget(pid_t group) { tell(-group); }

 private:
  void tell(pid_t message);

  pid_t pid_ = -1;
  int pipe_ = -1;
};

// The children of this process as the kernel sees them, adopted ones included.
std::vector<pid_t> children_of_this_process();

}  // namespace espalier::detail
