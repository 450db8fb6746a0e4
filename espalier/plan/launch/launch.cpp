// SPDX-License-Identifier: Apache-2.0
// One loop waits for three things: signals (a rank ended, or the user wants an end), output to pass
// on, and the next step of an end under way:
//
//   running -- a rank failed --> noticing (0.5 s: the others may say what they saw) --> SIGTERM -->
//   SIGKILL
//           -- a signal to us -------------------------------------------------------> SIGTERM -->
//           SIGKILL
#include "espalier/plan/launch/launch.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>

#include "espalier/base/check.hpp"
#include "espalier/plan/launch/child_process.hpp"
#include "espalier/plan/launch/line_relay.hpp"

namespace espalier {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kNoticeTime{500};     // from a rank's failure to SIGTERM for the others
constexpr milliseconds kTerminateTime{800};  // from SIGTERM to SIGKILL
constexpr milliseconds kOutputTime{
    300};  // for the last lines after an end that was not the ranks' own
constexpr int kConfigError = 2, kCommError = 3, kInternalError = 4;

// Signals come through a descriptor instead of handlers; the destructor restores everything.
class SignalQueue {
 public:
  SignalQueue() {
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
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue() {
    close(descriptor_);
    signal(SIGPIPE, old_pipe_);
    signal(SIGCHLD, old_child_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  int descriptor() const { return descriptor_; }
  const sigset_t& mask_before() const { return before_; }
  // The next signal, or 0.
  int next() {
    signalfd_siginfo info;
    return read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t before_ = {};
  sighandler_t old_child_ = SIG_DFL;
  sighandler_t old_pipe_ = SIG_DFL;
  int descriptor_ = -1;
};

// Where the ranks meet: a port that is bound before any of them runs, so nobody else can take it.
// Only rank 0 gets the descriptor.
class MeetingPlace {
 public:
  MeetingPlace() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    const bool bound = descriptor_ >= 0 && bind(descriptor_, generic, size) == 0 &&
                       listen(descriptor_, SOMAXCONN) == 0 &&
                       getsockname(descriptor_, generic, &size) == 0;
    const int number = errno;
    if (!bound) shut();
    ESPALIER_CHECK_CONFIG(bound,
                          "launch: no port on 127.0.0.1 for the ranks to meet at: {}; bring the "
                          "loopback interface up",
                          std::strerror(number));
    port_ = ntohs(address.sin_port);
  }
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;
  ~MeetingPlace() { shut(); }

  int descriptor() const { return descriptor_; }
  int port() const { return port_; }
  void shut() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }

 private:
  int descriptor_;
  int port_ = 0;
};

std::string make_job_name() {
  std::uint64_t number = 0;
  const ssize_t got = getrandom(&number, sizeof number, 0);
  return fmt::format("{}-{:x}", getpid(), got == sizeof number ? number : 0);
}

struct Rank {
  pid_t pid;
  std::optional<int> status = {};  // as waitpid gives it, once it has ended
};

bool failed(int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }
int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// How likely a failure is the cause rather than a consequence: ranks that lose a peer end with
// kCommError.
int weight(int status) {
  return WIFSIGNALED(status) ? 2 : WEXITSTATUS(status) == kCommError ? 0 : 1;
}

std::string describe(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  const char* name = sigabbrev_np(WTERMSIG(status));
  return fmt::format("was killed by signal {} (SIG{})", WTERMSIG(status),
                     name == nullptr ? "?" : name);
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options) : options_(options) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // what the ranks leave behind becomes ours, to be ended
    try {
      start_ranks();
    } catch (...) {
      leave_nothing();
      throw;
    }
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() {
    leave_nothing();
    prctl(PR_SET_CHILD_SUBREAPER, 0);
  }

  int run() {
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
    return culprit_ ? exit_code(*ranks_[*culprit_].status) : 0;
  }

 private:
  enum class Phase { running, noticing, terminating, killing };

  void start_ranks() {
    MeetingPlace meeting;
    const std::string job = make_job_name();
    Variables base = process_variables();
    for (const auto& [name, value] : options_.variables) base.insert_or_assign(name, value);
    for (std::int64_t rank = 0; rank < options_.num_ranks; ++rank) {
      const bool first = rank == 0;
      detail::ChildSpec spec{
          .command = options_.command,
          .variables = variables_of_rank(base, {rank, options_.num_ranks, meeting.port(),
                                                first ? meeting.descriptor() : -1, job}),
          .reads_standard_input = first && isatty(STDIN_FILENO) == 0,
          .kept_descriptor = first ? meeting.descriptor() : -1,
          .signal_mask = signals_.mask_before()};
      const detail::Child child = detail::start_child(spec);
      guard_.watch(child.pid);
      ranks_.push_back({child.pid});
      relay_.add(child.output, 0);
      relay_.add(child.error, 1);
      if (first) meeting.shut();
    }
  }

  std::size_t living() const {
    return static_cast<std::size_t>(
        std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.status; }));
  }

  // Until a signal, output, or the next step of an end under way.
  void wait_for_something() {
    std::vector<pollfd> waits{{signals_.descriptor(), POLLIN, 0}};
    relay_.append_to(waits);
    int limit_ms = -1;
    if (phase_ == Phase::noticing || phase_ == Phase::terminating) {
      const auto left = std::chrono::ceil<milliseconds>(next_step_ - Clock::now());
      limit_ms = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    }
    if (poll(waits.data(), waits.size(), limit_ms) > 0) relay_.advance(waits.data() + 1);
  }

  void take_signals() {
    while (const int number = signals_.next())
      if (number != SIGCHLD) interrupt(number);
  }

  // A second one ends the patience.
  void interrupt(int number) {
    if (interrupted_by_ == 0) {
      interrupted_by_ = number;
      if (phase_ == Phase::running || phase_ == Phase::noticing) terminate();
    } else if (number != SIGPIPE) {
      kill_all();
    }
  }

  void reap() {
    siginfo_t ended = {};
    while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0) {
      const auto rank = std::find_if(ranks_.begin(), ranks_.end(),
                                     [&](const Rank& one) { return one.pid == ended.si_pid; });
      if (rank != ranks_.end()) {
        kill(-ended.si_pid, SIGKILL);  // what it started, while its number cannot be anybody else's
        guard_.forget(ended.si_pid);
      }
      int status = 0;
      waitpid(ended.si_pid, &status, 0);
      if (rank != ranks_.end()) record(*rank, status);
      ended = {};
    }
  }

  void record(Rank& rank, int status) {
    rank.status = status;
    if (!failed(status) || phase_ == Phase::terminating || phase_ == Phase::killing) return;
    const auto index = static_cast<std::size_t>(&rank - ranks_.data());
    if (!culprit_ || weight(status) > weight(*ranks_[*culprit_].status)) culprit_ = index;
    if (phase_ == Phase::running) enter(Phase::noticing, kNoticeTime);
  }

  void escalate() {
    if (living() == 0 || Clock::now() < next_step_) return;
    if (phase_ == Phase::noticing) {
      give_verdict();
      terminate();
    } else if (phase_ == Phase::terminating) {
      kill_all();
    }
  }

  void enter(Phase phase, milliseconds time) {
    phase_ = phase;
    next_step_ = Clock::now() + time;
  }
  void terminate() {
    signal_living(SIGTERM);
    signal_living(SIGCONT);  // a stopped rank too
    enter(Phase::terminating, kTerminateTime);
  }
  void kill_all() {
    signal_living(SIGKILL);
    enter(Phase::killing, milliseconds(0));
  }
  void signal_living(int number) {
    for (const Rank& rank : ranks_)
      if (!rank.status) kill(-rank.pid, number);
  }

  // Names the rank that failed first, once.
  void give_verdict() {
    if (!culprit_ || verdict_given_ || interrupted_by_ != 0) return;
    verdict_given_ = true;
    const Rank& rank = ranks_[*culprit_];
    const int code = exit_code(*rank.status);
    const bool explained = code == kConfigError || code == kCommError || code == kInternalError;
    if (options_.ranks_explain && explained) return;
    const std::size_t others = living();
    relay_.say(fmt::format("{}: rank {} of {} (pid {}) {}{}", options_.speaker, *culprit_,
                           ranks_.size(), rank.pid, describe(*rank.status),
                           others == 0 ? "" : fmt::format("; ending the other {}", others)));
  }

  // Kills and reaps everything that descends from this process, the guard excepted.
  void leave_nothing() {
    kill_all();
    while (true) {
      auto children = detail::children_of_this_process();
      std::erase(children, guard_.pid());
      if (children.empty()) return;
      for (const pid_t pid : children) kill(pid, SIGKILL);
      for (const pid_t pid : children) {
        int status = 0;
        if (waitpid(pid, &status, 0) != pid) continue;
        for (Rank& rank : ranks_)
          if (rank.pid == pid) rank.status = status;
      }
    }
  }

  // All writers are gone: what is left is in the pipes. A slow reader is waited for unless the end
  // was forced.
  void pass_on_last_output() {
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

  const LaunchOptions& options_;
  SignalQueue signals_;
  detail::Guard guard_;  // before the first rank, so that it holds none of their pipes
  detail::LineRelay relay_;
  std::vector<Rank> ranks_;
  Phase phase_ = Phase::running;
  Clock::time_point next_step_ = {};
  std::optional<std::size_t> culprit_;  // among the ranks that failed by themselves
  bool verdict_given_ = false;
  int interrupted_by_ = 0;
};

}  // namespace

int launch_ranks(const LaunchOptions& options) {
  ESPALIER_CHECK_CONFIG(options.num_ranks >= 1, "launch: {} ranks; at least 1 is needed",
                        options.num_ranks);
  ESPALIER_CHECK_CONFIG(!options.command.empty(),
                        "launch: no program; give one after the options, as in -n 2 -- ./program");
  return Launch(options).run();
}

}  // namespace espalier
