// SPDX-License-Identifier: Apache-2.0
// One loop waits for three things: signals (a child ended, or the user wants an end), output to
// pass on, and the next step of an end under way:
//
//   running -- a child failed --> noticing (the others may say what they saw) --> SIGTERM -->
//   SIGKILL
//           -- a signal to us, or our lifeline is cut ---------------------------> SIGTERM -->
//           SIGKILL
#include "espalier/plan/launch/supervisor.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "espalier/base/check.hpp"

namespace espalier::detail {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kOutputTime{300};  // for the last lines after an end that was not the children's own

bool failed(int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }
int exit_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// How likely a failure is the cause rather than a consequence: ranks that lose a peer end with
// kCommErrorCode.
int weight(int status) { return WIFSIGNALED(status) ? 2 : WEXITSTATUS(status) == kCommErrorCode ? 0 : 1; }

std::string describe(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  const char* name = sigabbrev_np(WTERMSIG(status));
  return fmt::format("was killed by signal {} (SIG{})", WTERMSIG(status), name == nullptr ? "?" : name);
}

}  // namespace

SignalQueue::SignalQueue() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int number : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGCHLD}) sigaddset(&wanted, number);
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler == SIG_IGN) sigdelset(&wanted, SIGHUP);  // started with nohup
  sigprocmask(SIG_BLOCK, &wanted, &before_);
  old_child_ = signal(SIGCHLD, SIG_DFL);
  old_pipe_ = signal(SIGPIPE, SIG_IGN);
  descriptor_ = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
}

SignalQueue::~SignalQueue() {
  close(descriptor_);
  signal(SIGPIPE, old_pipe_);
  signal(SIGCHLD, old_child_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalQueue::next() {
  signalfd_siginfo info;
  return read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

Supervisor::Supervisor(const Policy& policy, std::vector<ChildSpec> children) : policy_(policy) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // what the children leave behind becomes ours, to be ended
  try {
    for (ChildSpec& spec : children) {
      spec.signal_mask = signals_.mask_before();
      const Child child = start_child(spec);
      guard_.watch(child.pid);
      children_.push_back({child.pid});
      relay_.add(child.output, 0);
      relay_.add(child.error, 1);
    }
  } catch (...) {
    leave_nothing();
    throw;
  }
}

Supervisor::~Supervisor() {
  leave_nothing();
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

int Supervisor::run() {
  while (living() > 0) {
    wait_for_something();
    take_signals();
    reap();
    if (relay_.reader_is_gone()) interrupt(SIGPIPE);
    escalate();
  }
  give_verdict();
  leave_nothing();
  pass_on_last_output();
  if (interrupted_by_ != 0) return 128 + interrupted_by_;
  return culprit_ ? exit_code(*children_[*culprit_].status) : 0;
}

std::size_t Supervisor::living() const {
  return static_cast<std::size_t>(
      std::count_if(children_.begin(), children_.end(), [](const Started& one) { return !one.status; }));
}

// Until a signal, output, the end of the lifeline, or the next step of an end under way.
void Supervisor::wait_for_something() {
  std::vector<pollfd> waits{{signals_.descriptor(), POLLIN, 0},
                            {interrupted_by_ == 0 ? policy_.lifeline : -1, POLLIN, 0}};
  relay_.append_to(waits);
  int limit_ms = -1;
  if (phase_ == Phase::noticing || phase_ == Phase::terminating) {
    const auto left = std::chrono::ceil<milliseconds>(next_step_ - Clock::now());
    limit_ms = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  }
  if (poll(waits.data(), waits.size(), limit_ms) <= 0) return;
  if (waits[1].revents != 0 && lifeline_is_cut()) {
    relay_.say(policy_.speaker + ": whoever started this has gone (its standard input has ended); ending all");
    interrupt(SIGHUP);
  }
  relay_.advance(waits.data() + 2);
}

// Nobody writes to it while it holds.
bool Supervisor::lifeline_is_cut() const {
  char ignored = 0;
  const ssize_t got = read(policy_.lifeline, &ignored, 1);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

void Supervisor::take_signals() {
  while (const int number = signals_.next())
    if (number != SIGCHLD) interrupt(number);
}

// A second one ends the patience.
void Supervisor::interrupt(int number) {
  if (interrupted_by_ == 0) {
    interrupted_by_ = number;
    if (phase_ == Phase::running || phase_ == Phase::noticing) terminate();
  } else if (number != SIGPIPE) {
    kill_all();
  }
}

void Supervisor::reap() {
  siginfo_t ended = {};
  while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0) {
    const auto child =
        std::find_if(children_.begin(), children_.end(), [&](const Started& one) { return one.pid == ended.si_pid; });
    if (child != children_.end()) {
      kill(-ended.si_pid, SIGKILL);  // what it started, while its number cannot be anybody else's
      guard_.forget(ended.si_pid);
    }
    int status = 0;
    waitpid(ended.si_pid, &status, 0);
    if (child != children_.end()) record(*child, status);
    ended = {};
  }
}

void Supervisor::record(Started& child, int status) {
  child.status = status;
  if (!failed(status) || phase_ == Phase::terminating || phase_ == Phase::killing) return;
  const auto index = static_cast<std::size_t>(&child - children_.data());
  if (!culprit_ || weight(status) > weight(*children_[*culprit_].status)) culprit_ = index;
  if (phase_ == Phase::running) enter(Phase::noticing, policy_.notice_time);
}

void Supervisor::escalate() {
  if (living() == 0 || Clock::now() < next_step_) return;
  if (phase_ == Phase::noticing) {
    give_verdict();
    terminate();
  } else if (phase_ == Phase::terminating) {
    kill_all();
  }
}

void Supervisor::enter(Phase phase, milliseconds time) {
  phase_ = phase;
  next_step_ = Clock::now() + time;
}

void Supervisor::terminate() {
  signal_living(SIGTERM);
  signal_living(SIGCONT);  // a stopped one too
  enter(Phase::terminating, interrupted_by_ != 0 ? policy_.stop_time : policy_.terminate_time);
}

void Supervisor::kill_all() {
  signal_living(SIGKILL);
  enter(Phase::killing, milliseconds(0));
}

void Supervisor::signal_living(int number) {
  for (const Started& child : children_)
    if (!child.status) kill(-child.pid, number);
}

// Names the child that failed first, once.
void Supervisor::give_verdict() {
  if (!culprit_ || verdict_given_ || interrupted_by_ != 0) return;
  verdict_given_ = true;
  const Started& child = children_[*culprit_];
  if (policy_.explained_codes.contains(exit_code(*child.status))) return;
  const std::size_t others = living();
  relay_.say(fmt::format("{}: {} {}{}", policy_.speaker, policy_.name_of(*culprit_, child.pid), describe(*child.status),
                         others == 0 ? "" : fmt::format("; ending the other {}", others)));
}

// Kills and reaps everything that descends from this process, the guard excepted.
void Supervisor::leave_nothing() {
  kill_all();
  while (true) {
    auto left = children_of_this_process();
    std::erase(left, guard_.pid());
    if (left.empty()) return;
    for (const pid_t pid : left) kill(pid, SIGKILL);
    for (const pid_t pid : left) {
      int status = 0;
      if (waitpid(pid, &status, 0) != pid) continue;
      for (Started& child : children_)
        if (child.pid == pid) child.status = status;
    }
  }
}

// All writers are gone: what is left is in the pipes. A slow reader is waited for unless the end
// was forced.
void Supervisor::pass_on_last_output() {
  const auto deadline = Clock::now() + kOutputTime;
  while (interrupted_by_ == 0 || Clock::now() < deadline) {
    std::vector<pollfd> waits{{signals_.descriptor(), POLLIN, 0}};
    relay_.append_to(waits);
    const int limit_ms = relay_.has_unwritten() ? static_cast<int>(kOutputTime.count()) : 0;
    const int ready = poll(waits.data(), waits.size(), limit_ms);
    if (ready == 0 && limit_ms == 0) return;
    if (ready > 0) relay_.advance(waits.data() + 1);
    take_signals();
  }
}

}  // namespace espalier::detail
