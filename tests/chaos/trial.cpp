// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/trial.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <optional>
#include <regex>
#include <stdexcept>
#include <thread>

#include "espalier/plan/seed.hpp"
#include "tests/chaos/rank.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier::chaos {
namespace {

using std::chrono::milliseconds;

// Nobody waits on purpose: only a rank that hangs, or a machine that has been taken away, comes near.
constexpr std::int64_t kPatienceMs = 30'000;
// Where waiting until the deadline may be the only way to find out.
constexpr std::int64_t kShortMs = 5'000;
constexpr std::int64_t kHangMs = 60'000;

class SharedBoard {
 public:
  SharedBoard() {
    void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("chaos: mmap");
    board_ = new (memory) Board;
  }
  ~SharedBoard() { ::munmap(board_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board& operator*() const { return *board_; }

 private:
  Board* board_;
};

// A socket that listens at a free port of 127.0.0.1.
void listen_somewhere(Meeting& meeting) {
  meeting.listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(meeting.listener, generic, length) != 0 || ::listen(meeting.listener, SOMAXCONN) != 0 ||
      ::getsockname(meeting.listener, generic, &length) != 0) {
    throw std::runtime_error("chaos: no port");
  }
  meeting.port = ntohs(address.sin_port);
}

struct Rank {
  pid_t pid = 0;
  std::optional<int> status;  // as from waitpid
  bool hung = false;
};

std::vector<Rank> start(const Trial& trial, Meeting& meeting, Board& board) {
  std::vector<Rank> ranks(static_cast<std::size_t>(trial.program.num_ranks));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::fflush(nullptr);
    ranks[rank].pid = ::fork();
    if (ranks[rank].pid < 0) throw std::runtime_error("chaos: fork");
    if (ranks[rank].pid > 0) continue;
    if (rank > 0 && meeting.listener >= 0) ::close(meeting.listener);  // or nobody would notice that rank 0 has gone
    const int code = run_rank(trial, static_cast<std::int64_t>(rank), meeting, board);
    std::fflush(nullptr);
    ::_exit(code);  // LibTorch takes a quarter of a second to take down what it has registered
  }
  if (meeting.listener >= 0) ::close(meeting.listener);
  return ranks;
}

// Until all have ended. A stopped victim goes on after its pause, or is killed when all others have ended.
void await(const Trial& trial, std::vector<Rank>& ranks) {
  const std::int64_t deadline_us = now_us() + kHangMs * 1000;
  std::optional<std::int64_t> goes_on_us;
  for (;;) {
    std::size_t running = 0;
    for (const Rank& rank : ranks) running += rank.status ? 0 : 1;
    if (running == 0) return;
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED);
    if (pid > 0 && WIFSTOPPED(status)) {
      goes_on_us = now_us() + trial.fault.pause / std::chrono::microseconds(1);
    } else if (pid > 0) {
      for (Rank& rank : ranks) {
        if (rank.pid == pid) rank.status = status;
      }
      continue;
    }
    const auto victim = static_cast<std::size_t>(trial.fault.victim);
    if (trial.fault.kind == FaultKind::stop_and_continue && goes_on_us && now_us() >= *goes_on_us) {
      ::kill(ranks[victim].pid, SIGCONT);
      goes_on_us.reset();
    }
    if (trial.fault.kind == FaultKind::stop && running == 1 && !ranks[victim].status)
      ::kill(ranks[victim].pid, SIGKILL);
    if (now_us() > deadline_us) {
      for (Rank& rank : ranks) {
        if (rank.status) continue;
        rank.hung = true;
        ::kill(rank.pid, SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

// Whether the text says who is to blame. Before there is a world a rank has no process that others know.
bool names(const std::string& text, const Trial& trial, pid_t pid, bool is_victim) {
  const std::int64_t victim = trial.fault.victim;
  if (is_victim && text.find(fmt::format("on rank {}", victim)) != std::string::npos) return true;
  if (text.find(fmt::format("rank {} (pid {})", victim, pid)) != std::string::npos) return true;
  if (!trial.fault.while_joining) return false;
  if (victim == 0 && (text.find("the process that serves the store has ended") != std::string::npos ||
                      text.find("the process that serves it, rank 0") != std::string::npos)) {
    return true;
  }
  static const std::regex missing(R"((?:missing: |ranks? )((?:\d+, )*\d+))");
  for (auto found = std::sregex_iterator(text.begin(), text.end(), missing); found != std::sregex_iterator(); ++found) {
    if (std::regex_search((*found)[1].str(), std::regex(fmt::format(R"(\b{}\b)", victim)))) return true;
  }
  return false;
}

std::string describe_status(int status) {
  return WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                             : fmt::format("exit code {}", WEXITSTATUS(status));
}

// The signal that ends the victim; 0: none.
int fatal_signal(FaultKind kind) {
  switch (kind) {
    case FaultKind::kill:
    case FaultKind::stop:
      return SIGKILL;
    case FaultKind::segfault:
      return SIGSEGV;
    case FaultKind::abort:
      return SIGABRT;
    case FaultKind::none:
    case FaultKind::slow_peer:
    case FaultKind::stop_and_continue:
    case FaultKind::full_disk:
    case FaultKind::no_descriptors:
    case FaultKind::exception:
    case FaultKind::wrong_shape:
    case FaultKind::wrong_dtype:
    case FaultKind::skipped:
    case FaultKind::extra:
    case FaultKind::reordered:
      return 0;
  }
  return 0;
}

void judge(const Trial& trial, const std::vector<Rank>& ranks, const Board& board, Verdict& verdict) {
  const Fault& fault = trial.fault;
  const auto complain = [&](std::size_t rank, const std::string& what) {
    verdict.complaints.push_back(fmt::format("rank {}: {}", rank, what));
  };
  bool badly = ending(fault) == Ending::badly;
  if (ending(fault) == Ending::either) {
    for (const Rank& rank : ranks) badly = badly || *rank.status != 0;
  }
  const pid_t victim_pid = badly ? ranks[static_cast<std::size_t>(fault.victim)].pid : 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const int status = *ranks[rank].status;
    const std::string text = board.ranks[rank].text.data();
    verdict.last_words.push_back(
        fmt::format("pid {}, {}{}{}", ranks[rank].pid, describe_status(status), text.empty() ? "" : ": ", text));
    if (ranks[rank].hung) {
      complain(rank, "hung");
      continue;
    }
    const std::string left = board.ranks[rank].left.data();
    if (!left.empty()) complain(rank, fmt::format("left behind: {}", left));
    const bool is_victim = static_cast<std::int64_t>(rank) == fault.victim;
    if (!badly) {
      if (status != 0) complain(rank, fmt::format("{} instead of exit code 0: {}", describe_status(status), text));
    } else if (is_victim && fatal_signal(fault.kind) != 0) {
      if (!WIFSIGNALED(status) || WTERMSIG(status) != fatal_signal(fault.kind)) {
        complain(rank, fmt::format("the victim ended with {}: {}", describe_status(status), text));
      }
    } else if (is_victim && fault.kind == FaultKind::exception) {
      if (status != 4 << 8) complain(rank, fmt::format("the victim ended with {}: {}", describe_status(status), text));
    } else if (is_victim && fault.kind == FaultKind::no_descriptors) {
      if (status != 2 << 8 && status != 3 << 8)
        complain(rank, fmt::format("the victim ended with {}: {}", describe_status(status), text));
    } else if (status != 3 << 8) {
      complain(rank, fmt::format("{} instead of exit code 3: {}", describe_status(status), text));
    } else if (!names(text, trial, victim_pid, is_victim)) {
      complain(rank, fmt::format("does not name rank {} (pid {}): {}", fault.victim, victim_pid, text));
    }
    if (badly && !is_victim && board.struck_us > 0) {
      const auto ms = static_cast<double>(board.ranks[rank].ended_us - board.struck_us) * 1e-3;
      verdict.noticed_ms = std::max(verdict.noticed_ms, ms);
    }
  }
}

}  // namespace

Trial make_trial(std::uint64_t seed, std::int64_t num_steps) {
  Random random(derive_seed(seed, "chaos trial"));
  Trial trial;
  trial.seed = seed;
  const std::vector<std::int64_t> ranks{2, 3, 3, 4, 4, 5, 6, 8};
  trial.from_environment = random.chance(0.4);
  trial.arena_bytes = std::int64_t{1} << random.between(16, 22);  // of messages up to 1 MiB
  trial.program =
      make_program(seed, {.num_ranks = random.pick(ranks), .num_steps = num_steps / 2 + random.below(num_steps + 1)});
  trial.fault = choose_fault(seed, trial.program);
  if (trial.fault.while_joining) trial.from_environment = true;  // the other way to meet is the tests' own
  const bool badly = ending(trial.fault) != Ending::well;
  trial.timeout_ms = badly && trial.fault.while_joining ? kShortMs : kPatienceMs;
  trial.patience_ms = badly && trial.fault.kind >= FaultKind::stop ? kShortMs : kPatienceMs;
  return trial;
}

Verdict run_trial(const Trial& trial) {
  const testing_support::TemporaryFolder folder;
  const SharedBoard board;
  Meeting meeting{.folder = folder.path()};
  if (trial.from_environment) listen_somewhere(meeting);
  Verdict verdict;
  std::vector<Rank> ranks = start(trial, meeting, *board);
  await(trial, ranks);
  judge(trial, ranks, *board, verdict);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string errors = testing_support::read_text(errors_file(meeting, static_cast<std::int64_t>(rank)));
    if (!errors.empty()) verdict.last_words[rank] += "\n    standard error: " + errors;
  }
  for (const std::string& name : folder.names()) {
    const bool expected = name == "host_segment" || name.starts_with("errors-") ||
                          (name.starts_with("rank-") && name.ends_with(".safetensors"));
    if (!expected) verdict.complaints.push_back("left behind: file " + name);
  }
  if (::waitpid(-1, nullptr, WNOHANG) >= 0) verdict.complaints.push_back("left behind: a process");
  return verdict;
}

std::string describe(const Trial& trial) {
  return fmt::format(
      "seed {}: {}; {} ranks, {} steps, {} groups, {}", trial.seed, describe(trial.fault), trial.program.num_ranks,
      trial.program.steps.size(), trial.program.groups.size(),
      trial.from_environment ? "from the environment" : fmt::format("arenas of {} KiB", trial.arena_bytes >> 10));
}

}  // namespace espalier::chaos
