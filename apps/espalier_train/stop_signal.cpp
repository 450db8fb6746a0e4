// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/stop_signal.hpp"

#include <csignal>

namespace espalier::command {
namespace {

// A process has one set of signal handlers, and these can reach nothing else.
volatile std::sig_atomic_t first_signal = 0;
volatile std::sig_atomic_t second_signal_ends = 0;

void note(int number) {
  if (first_signal == 0) {
    first_signal = number;
  } else if (second_signal_ends != 0) {
    signal(number, SIG_DFL);
    raise(number);  // delivered when this returns
  }
}

void set_handlers(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
}

}  // namespace

StopSignal::StopSignal(bool second_ends) {
  first_signal = 0;
  second_signal_ends = second_ends ? 1 : 0;
  set_handlers(note);
}

StopSignal::~StopSignal() { set_handlers(SIG_DFL); }

int StopSignal::number() const { return first_signal; }

}  // namespace espalier::command
