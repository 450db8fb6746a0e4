// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/soak.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "espalier/base/error.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/threads.hpp"
#include "espalier/comm/world_state.hpp"
#include "tests/chaos/player.hpp"
#include "tests/chaos/program.hpp"
#include "tests/comm/file_store.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier::chaos {
namespace {

constexpr std::size_t kSamples = 10;
constexpr std::int64_t kMostSoakingRanks = 64;
constexpr std::int64_t kArenaBytes = std::int64_t{1} << 20;  // operations reach 1 MiB
constexpr auto kTimeout = std::chrono::milliseconds(60'000);

// Of one rank's process, when nothing is under way.
struct Sample {
  std::int64_t memory_bytes = 0;
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;
  std::int64_t unexpected = 0;  // messages that came before their operation
};

struct RankRecord {
  std::array<Sample, kSamples> samples;
  std::int64_t num_played = 0;
  bool finished = false;
};

// Of a process of several ranks one measures: looking takes descriptors.
Sample measure(const World& world) {
  Sample sample;
  sample.unexpected = detail::num_unexpected_messages(*world.state().core->transport);
  if (world.launcher() == "threads" && world.rank() != 0) return sample;
  sample.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> sample.memory_bytes;
    if (word == "Threads:") status >> sample.threads;
  }
  sample.memory_bytes *= 1024;
  return sample;
}

void play(const World& world, const Program& program, RankRecord& record) {
  Player player(program, world, kTimeout);
  std::size_t number = 0;
  for (std::size_t rest = 0; rest < program.rests.size(); ++rest) {
    for (; number < program.rests[rest]; ++number) player.play(program.steps[number], number);
    player.finish();
    // Everybody stands between the two barriers. What was dropped unfinished ends with the messages of the first.
    barrier(world.group()).wait();
    if (rest < kSamples) record.samples[rest] = measure(world);
    barrier(world.group()).wait();
  }
  record.num_played = player.num_played();
  record.finished = true;
}

void run_threads(const Program& program, RankRecord* records) {
  const detail::HostOptions host{.timeout = kTimeout, .arena_bytes = kArenaBytes};
  WorldOptions options;
  options.timeout = kTimeout;
  detail::run_threads(
      detail::make_host_transports_for_threads(program.num_ranks, host), Backend::host,
      [&](World& world) { play(world, program, records[world.rank()]); }, options);
}

void run_rank_process(const Program& program, std::int64_t rank, const std::string& folder, RankRecord& record) {
  at::set_num_threads(1);
  testing_support::FileStore store(folder);
  auto transport =
      detail::make_host_transport(store, rank, program.num_ranks, {.timeout = kTimeout, .arena_bytes = kArenaBytes});
  WorldOptions options;
  options.timeout = kTimeout;
  const World world = detail::make_world({.rank = rank,
                                          .size = program.num_ranks,
                                          .local_rank = rank,
                                          .local_size = program.num_ranks,
                                          .host = "here",
                                          .launcher = "chaos",
                                          .backend = Backend::host},
                                         std::move(transport), options);
  play(world, program, record);
}

// Forks the ranks; this process has one thread still.
void run_processes(const Program& program, RankRecord* records) {
  const testing_support::TemporaryFolder folder;
  for (std::int64_t rank = 0; rank < program.num_ranks; ++rank) {
    std::fflush(nullptr);
    if (::fork() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      run_rank_process(program, rank, folder.path(), records[rank]);
      ::_exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      ::_exit(1);
    }
  }
  while (::wait(nullptr) > 0) {
  }
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// What has grown; empty: nothing.
std::string growth(const Sample& first, const Sample& last, std::int64_t num_ranks) {
  // Arenas fill and allocators keep pages until every size has come by; thousands of operations would leak far more.
  if (last.memory_bytes > first.memory_bytes + first.memory_bytes / 4 + (std::int64_t{32} << 20)) return "memory";
  if (last.descriptors != first.descriptors) return "descriptors";
  if (last.threads != first.threads) return "threads";
  // At most the first message of the barrier that others are in already.
  if (last.unexpected > num_ranks) return "unexpected messages";
  return "";
}

}  // namespace

int soak(const SoakOptions& options) {
  if (options.num_ranks < 2 || options.num_ranks > kMostSoakingRanks) {
    fmt::print(stderr, "chaos: {} ranks; expected 2 to {}\n", options.num_ranks, kMostSoakingRanks);
    return 2;
  }
  void* memory = ::mmap(nullptr, kMostSoakingRanks * sizeof(RankRecord), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* records = new (memory) RankRecord[kMostSoakingRanks];
  const Program program = make_program(options.seed, {.num_ranks = options.num_ranks,
                                                      .num_steps = options.num_operations,
                                                      .num_groups = 40,
                                                      .rest_every = (options.num_operations + 9) / 10});
  const auto begin = std::chrono::steady_clock::now();
  try {
    options.as_threads ? run_threads(program, records) : run_processes(program, records);
  } catch (const std::exception& error) {
    fmt::print("FAILED: {}\n", error.what());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

  std::int64_t calls = 0;
  bool failed = false;
  for (std::int64_t rank = 0; rank < options.num_ranks; ++rank) {
    calls += records[rank].num_played;
    failed = failed || !records[rank].finished;
  }
  fmt::print("{} operations over {} groups, {} ranks as {}, seed {}: {} calls in {:.1f} s, {}\n\n",
             program.steps.size(), program.groups.size(), options.num_ranks,
             options.as_threads ? "threads" : "processes", options.seed, calls, seconds.count(),
             failed ? "NOT all right" : "all results right");
  if (failed) return 1;
  fmt::print("| after | memory | descriptors | threads | unexpected messages |\n|---|---|---|---|---|\n");
  const std::size_t num_samples = std::min(kSamples, program.rests.size());
  for (std::size_t i = 0; i < num_samples; ++i) {
    Sample most;
    for (std::int64_t rank = 0; rank < options.num_ranks; ++rank) {
      const Sample& one = records[rank].samples[i];
      most.memory_bytes = std::max(most.memory_bytes, one.memory_bytes);
      most.descriptors = std::max(most.descriptors, one.descriptors);
      most.threads = std::max(most.threads, one.threads);
      most.unexpected = std::max(most.unexpected, one.unexpected);
    }
    fmt::print("| {} | {:.1f} MiB | {} | {} | {} |\n", program.rests[i], mib(most.memory_bytes), most.descriptors,
               most.threads, most.unexpected);
  }
  for (std::int64_t rank = 0; rank < options.num_ranks; ++rank) {
    const std::string grown =
        growth(records[rank].samples[0], records[rank].samples[num_samples - 1], options.num_ranks);
    if (grown.empty()) continue;
    fmt::print("FAILED: rank {}: {} grew\n", rank, grown);
    failed = true;
  }
  return failed ? 1 : 0;
}

}  // namespace espalier::chaos
