// SPDX-License-Identifier: Apache-2.0
// How long survivors take to know that a rank was killed in an all-reduce, and whether they can say which: 8 ranks that
// are processes of this host, over host, over gloo, and over c10d's Gloo without Espalier. The victim is killed at a
// random instant; survivors stay alive until all of them know.
//   bench_death [rounds] [rounds over Gloo]
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/command_line.hpp"
#include "espalier/comm/backends/c10d/gloo.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/world_state.hpp"
#include "tests/support/temporary_folder.hpp"

namespace esp = espalier;
using std::chrono::milliseconds;

namespace {

constexpr std::int64_t kRanks = 8;
constexpr std::int64_t kVictim = 5;
constexpr std::int64_t kElems = 16 * 1024;  // 64 KiB
constexpr milliseconds kTimeout{10'000};    // of every wait
constexpr int kLivesMs = 300;               // the victim is killed within so long, after everybody has reduced once

// Memory that the processes of a round share.
struct Board {
  struct Survivor {
    std::atomic<std::int64_t> knew_us{0};
    std::array<char, 2000> text{};
  };
  std::atomic<std::int64_t> killed_us{0};
  std::atomic<std::int64_t> num_ready{0};
  std::atomic<std::int64_t> num_know{0};
  std::array<Survivor, kRanks> ranks;
};

std::atomic<Board*> board_of_victim{nullptr};

std::int64_t now_us() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::microseconds(1); }

extern "C" void die(int) {
  board_of_victim.load()->killed_us.store(now_us());
  ::kill(::getpid(), SIGKILL);
}

void die_later(Board& board, int delay_ms) {
  board_of_victim.store(&board);
  ::signal(SIGALRM, die);
  itimerval timer{};
  timer.it_value.tv_usec = static_cast<suseconds_t>(delay_ms) * 1000 + 1;
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

using Reduce = std::function<void()>;
// Connects a rank; `folder` is the round's own.
using Connect = std::function<Reduce(std::int64_t rank, const std::string& folder)>;

c10::intrusive_ptr<c10d::Store> file_store(const std::string& folder) {
  return c10::make_intrusive<c10d::FileStore>(folder + "/store", static_cast<int>(kRanks));
}

Reduce over(const std::shared_ptr<esp::detail::Transport>& transport, esp::Backend backend, std::int64_t rank) {
  esp::WorldOptions options;
  options.timeout = kTimeout;
  options.log = nullptr;
  const esp::World world = esp::detail::make_world({.rank = rank,
                                                    .size = kRanks,
                                                    .local_rank = rank,
                                                    .local_size = kRanks,
                                                    .host = "here",
                                                    .launcher = "bench",
                                                    .backend = backend},
                                                   transport, options);
  return [world, tensor = at::ones({kElems})]() mutable { esp::all_reduce_(tensor, world.group()).wait(); };
}

Reduce connect_host(std::int64_t rank, const std::string& folder) {
  esp::detail::C10dStore store(file_store(folder));
  return over(esp::detail::make_host_transport(store, rank, kRanks, {.timeout = kTimeout, .log = nullptr}),
              esp::Backend::host, rank);
}

Reduce connect_gloo(std::int64_t rank, const std::string& folder) {
  const auto store = std::make_shared<esp::detail::C10dStore>(file_store(folder));
  return over(esp::detail::make_gloo_transport(store, rank, kRanks, {.timeout = kTimeout}), esp::Backend::gloo, rank);
}

Reduce connect_plain_gloo(std::int64_t rank, const std::string& folder) {
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(kTimeout);
  options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto group = c10::make_intrusive<ProcessGroupGloo>(file_store(folder), static_cast<int>(rank),
                                                           static_cast<int>(kRanks), options);
  return
      [group, tensors = std::vector<at::Tensor>{at::ones({kElems})}]() mutable { group->allreduce(tensors)->wait(); };
}

[[noreturn]] void run_rank(const Connect& connect, std::int64_t rank, const std::string& folder, int delay_ms,
                           Board& board) {
  at::set_num_threads(1);
  Board::Survivor& mine = board.ranks[static_cast<std::size_t>(rank)];
  try {
    const Reduce reduce = connect(rank, folder);
    reduce();
    board.num_ready.fetch_add(1);
    while (board.num_ready.load() < kRanks) std::this_thread::sleep_for(milliseconds(1));
    if (rank == kVictim) die_later(board, delay_ms);
    try {
      for (;;) reduce();
    } catch (const std::exception& error) {
      mine.knew_us.store(now_us());
      std::strncpy(mine.text.data(), error.what(), mine.text.size() - 1);
      board.num_know.fetch_add(1);
      while (board.num_know.load() < kRanks - 1) std::this_thread::sleep_for(milliseconds(1));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_death: rank {}: {}\n", rank, error.what());
  }
  ::_exit(0);
}

struct Round {
  double first_ms = 0;
  double last_ms = 0;
  int named = 0;  // survivors whose error says "rank 5"
  std::string example;
};

Round play(const Connect& connect, int delay_ms) {
  void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::exit(1);
  auto* board = new (memory) Board;
  const esp::testing_support::TemporaryFolder folder;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    if (::fork() == 0) run_rank(connect, rank, folder.path(), delay_ms, *board);
  }
  while (::wait(nullptr) > 0) {
  }
  Round round;
  round.first_ms = 1e9;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    if (rank == kVictim) continue;
    const Board::Survivor& one = board->ranks[static_cast<std::size_t>(rank)];
    const double ms = static_cast<double>(one.knew_us.load() - board->killed_us.load()) * 1e-3;
    const std::string text = one.text.data();
    if (one.knew_us == 0 || board->killed_us == 0) {
      fmt::print(stderr, "bench_death: rank {} never knew\n", rank);
      std::exit(1);
    }
    round.named += text.find(fmt::format("rank {}", kVictim)) != std::string::npos ? 1 : 0;
    if (ms > round.last_ms) round.example = text.substr(0, text.find('\n'));
    round.first_ms = std::min(round.first_ms, ms);
    round.last_ms = std::max(round.last_ms, ms);
  }
  ::munmap(memory, sizeof(Board));
  return round;
}

void report(std::string_view name, const Connect& connect, int rounds) {
  std::minstd_rand random(1);
  std::vector<double> first, last;
  int named = 0;
  std::string example;
  for (int i = 0; i < rounds; ++i) {
    const Round round = play(connect, static_cast<int>(random() % kLivesMs));
    first.push_back(round.first_ms);
    last.push_back(round.last_ms);
    named += round.named;
    example = round.example;
  }
  std::ranges::sort(first);
  std::ranges::sort(last);
  const auto middle = static_cast<std::size_t>(rounds / 2);
  fmt::print("| {} | {} | {:.1f} ms | {:.1f} ms | {:.1f} ms | {} of {} |\n", name, rounds, first[middle], last[middle],
             last.back(), named, rounds * (kRanks - 1));
  fmt::print(stderr, "{}: the last to know said: {}\n", name, example);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 20, gloo_rounds = 5;
  CLI::App app("How long survivors take to know that a rank was killed, and whether they name it.", "bench_death");
  app.add_option("rounds", rounds, "Over host")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("gloo_rounds", gloo_rounds, "Over Gloo")->check(CLI::PositiveNumber)->capture_default_str();
  return esp::bench::run(app, argc, argv, [&] {
    fmt::print(
        "| | rounds | first to know, median | last to know, median | max | name the victim |\n|---|---|---|---|---|---|\n");
    report("espalier, host", connect_host, rounds);
    report("espalier, gloo", connect_gloo, gloo_rounds);
    report("c10d Gloo", connect_plain_gloo, gloo_rounds);
  });
}
