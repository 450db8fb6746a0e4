// SPDX-License-Identifier: Apache-2.0
// Runs every conformance case over every backend: "Conformance/HostThreads.AllReducesEveryDtype_3" is that case on 3
// ranks. A new backend is a line in kBackends.
//
//   backend        ordered sums   names different calls   names who left or died
//   host           yes            yes                     yes
//   gloo           no             no                      no
//   hierarchical   no             no                      no          (but inside a host: hierarchical_test.cpp)
//   mpi            no             no                      no          (mpi_test.cpp)
//   c10d           as the process group's backend; what is between gives no more than over gloo
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "espalier/base/error.hpp"
#include "espalier/comm/backends/c10d/gloo.hpp"
#include "espalier/comm/backends/hierarchical/hierarchical.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"
#include "espalier/comm/backends/recording/recording.hpp"
#include "espalier/comm/c10d.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/threads.hpp"
#include "espalier/comm/world_state.hpp"
#include "tests/comm/conformance.hpp"
#include "tests/comm/file_store.hpp"
#include "tests/comm/processes.hpp"
#include "tests/support/own_resources.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace espalier::conformance {
namespace {

using std::chrono::milliseconds;

WorldOptions options_of(const Case& one) {
  WorldOptions options;
  options.timeout = one.timeout;
  return options;
}

detail::HostOptions host_options_of(const Case& one) {
  return {.timeout = one.timeout, .arena_bytes = one.arena_bytes};
}

void run_on_host_threads(const Case& one, std::int64_t size, const Promises& promises) {
  std::vector<std::shared_ptr<detail::Transport>> transports(1);
  if (size > 1) transports = detail::make_host_transports_for_threads(size, host_options_of(one));
  detail::run_threads(
      std::move(transports), Backend::host, [&](World& world) { one.body(world, promises); }, options_of(one));
}

void run_on_recorded_host_threads(const Case& one, std::int64_t size, const Promises& promises) {
  std::vector<std::shared_ptr<detail::Transport>> transports(1);
  if (size > 1) transports = detail::make_host_transports_for_threads(size, host_options_of(one));
  for (auto& transport : transports) {
    if (size > 1)
      transport = detail::make_recording_transport(std::move(transport), std::make_shared<detail::Recorder>());
  }
  detail::run_threads(
      std::move(transports), Backend::host, [&](World& world) { one.body(world, promises); }, options_of(one));
}

const std::string kOverGloo = "over gloo: ";

void run_as_processes(const std::string& body, const Case& one, std::int64_t size) {
  const auto outcome = testing_support::run_processes(body, size, one.timeout + milliseconds(20'000));
  for (std::size_t rank = 0; rank < outcome.pids.size(); ++rank) {
    EXPECT_EQ(outcome.statuses[rank], 0) << "rank " << rank << ":\n" << outcome.outputs[rank];
  }
}

void run_on_host_processes(const Case& one, std::int64_t size, const Promises&) {
  run_as_processes(one.name, one, size);
}

void run_on_gloo_processes(const Case& one, std::int64_t size, const Promises&) {
  run_as_processes(kOverGloo + one.name, one, size);
}

void run_on_gloo(const Case& one, std::int64_t size, const Promises& promises) {
  std::vector<std::shared_ptr<detail::Transport>> transports(1);
  if (size > 1) transports = detail::make_gloo_transports_for_threads(size, {.timeout = one.timeout});
  detail::run_threads(
      std::move(transports), Backend::gloo, [&](World& world) { one.body(world, promises); }, options_of(one));
}

void run_on_checked_gloo(const Case& one, std::int64_t size, const Promises& promises) {
  std::vector<std::shared_ptr<detail::Transport>> transports(1);
  if (size > 1) transports = detail::make_gloo_transports_for_threads(size, {.timeout = one.timeout});
  WorldOptions options = options_of(one);
  options.check_calls = true;
  detail::run_threads(std::move(transports), Backend::gloo, [&](World& world) { one.body(world, promises); }, options);
}

void run_on_hosts(const Case& one, const std::vector<std::int64_t>& hosts, const Promises& promises) {
  std::vector<std::shared_ptr<detail::Transport>> transports(1);
  if (hosts.size() > 1) transports = detail::make_hierarchical_transports_for_threads(hosts, host_options_of(one));
  detail::run_threads(
      std::move(transports), Backend::hierarchical, [&](World& world) { one.body(world, promises); }, options_of(one),
      hosts);
}

// 2 ranks: one on each host; 3: 2 + 1; 4: 2 + 2; 5: 3 + 2.
void run_on_two_hosts(const Case& one, std::int64_t size, const Promises& promises) {
  std::vector<std::int64_t> hosts;
  for (std::int64_t rank = 0; rank < size; ++rank) hosts.push_back(rank * 2 / size);
  run_on_hosts(one, hosts, promises);
}

void run_on_hosts_in_turn(const Case& one, std::int64_t size, const Promises& promises) {
  std::vector<std::int64_t> hosts;
  for (std::int64_t rank = 0; rank < size; ++rank) hosts.push_back(rank % 2);
  run_on_hosts(one, hosts, promises);
}

// A process group as a program makes it.
c10::intrusive_ptr<c10d::ProcessGroup> process_group_of(const c10::intrusive_ptr<c10d::Store>& store,
                                                        c10d::ProcessGroup::BackendType type,
                                                        const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto process_group = c10::make_intrusive<c10d::ProcessGroup>(store, backend->getRank(), backend->getSize());
  process_group->setBackend(c10::kCPU, type, backend);
  process_group->setDefaultBackend(type);
  return process_group;
}

// Ranks as threads, whose worlds are made of the process groups that `make` gives each.
void run_on_c10d(const Case& one, std::int64_t size, const Promises& promises,
                 const std::function<C10dGroup(std::int64_t rank)>& make) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      std::optional<World> world;
      try {
        world = World::from_c10d(make(rank), options_of(one));
        one.body(*world, promises);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
        if (world && world->size() > 1) world->state().core->transport->abort(error.what());
      }
    });
  }
  threads.clear();  // joins
  for (std::size_t rank = 0; rank < errors.size(); ++rank) EXPECT_EQ(errors[rank], "") << "on rank " << rank;
}

void run_on_c10d_of_gloo(const Case& one, std::int64_t size, const Promises& promises) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_on_c10d(one, size, promises, [&](std::int64_t rank) -> C10dGroup {
    const auto own = c10::make_intrusive<c10d::PrefixStore>("program", store);
    return {process_group_of(own, c10d::ProcessGroup::GLOO, detail::make_gloo_backend(own, rank, size))};
  });
}

// Both bridges: a world over a process group over a group over shared memory.
void run_on_c10d_of_host(const Case& one, std::int64_t size, const Promises& promises) {
  std::vector<std::shared_ptr<detail::Transport>> transports(1);
  if (size > 1) transports = detail::make_host_transports_for_threads(size, host_options_of(one));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_on_c10d(one, size, promises, [&](std::int64_t rank) -> C10dGroup {
    const World below = detail::make_world({.rank = rank, .size = size, .host = "here", .launcher = "threads"},
                                           std::move(transports[static_cast<std::size_t>(rank)]), options_of(one));
    return {process_group_of(store, c10d::ProcessGroup::CUSTOM, as_c10d_backend(below.group())),
            [below](const auto&, const RankSet& members, std::string_view name) {
              return as_c10d_backend(
                  below.make_group(members, name).duplicate(fmt::format("{} {}", name, members.to_string())));
            }};
  });
}

// Of the sizes of a case.
enum class Sizes { every, largest, smallest };

struct BackendUnderTest {
  std::string name;
  Promises promises;
  void (*run)(const Case&, std::int64_t size, const Promises&);
  Sizes sizes;
};

constexpr Promises kAsOverGloo{.ordered_sums = false,
                               .small_arenas = false,
                               .names_mismatch = false,
                               .names_mismatched_messages = false,
                               .names_leavers = false};

const std::vector<BackendUnderTest>& backends() {
  static const std::vector<BackendUnderTest> all{
      {"HostThreads", {}, run_on_host_threads, Sizes::every},
      {"HostProcesses", {}, run_on_host_processes, Sizes::largest},
      {"RecordedHostThreads", {}, run_on_recorded_host_threads, Sizes::smallest},
      {"GlooThreads", kAsOverGloo, run_on_gloo, Sizes::largest},
      {"GlooProcesses", kAsOverGloo, run_on_gloo_processes, Sizes::smallest},
      {"CheckedGlooThreads",
       {.ordered_sums = false,
        .small_arenas = false,
        .names_mismatched_messages = false,
        .free_order = false,
        .names_leavers = false},
       run_on_checked_gloo,
       Sizes::smallest},
      {"HierarchicalThreads", kAsOverGloo, run_on_two_hosts, Sizes::every},
      {"HierarchicalInTurn", kAsOverGloo, run_on_hosts_in_turn, Sizes::largest},
      {"C10dOfGloo", kAsOverGloo, run_on_c10d_of_gloo, Sizes::largest},
      {"C10dOfHost",
       {.names_mismatch = false, .names_mismatched_messages = false, .names_leavers = false},
       run_on_c10d_of_host,
       Sizes::largest},
  };
  return all;
}

class ConformanceTest : public testing::Test {
 public:
  ConformanceTest(const BackendUnderTest& backend, const Case& one, std::int64_t size)
      : backend_(backend), case_(one), size_(size) {}
  void TestBody() override { backend_.run(case_, size_, backend_.promises); }

 private:
  const BackendUnderTest& backend_;
  const Case& case_;
  const std::int64_t size_;
};

void register_cases() {
  for (const BackendUnderTest& backend : backends()) {
    for (const Case& one : cases()) {
      if (!one.applies(backend.promises)) continue;
      for (const std::int64_t size : one.sizes) {
        if (backend.sizes == Sizes::largest && size != one.sizes.back()) continue;
        if (backend.sizes == Sizes::smallest && size != one.sizes.front()) continue;
        testing::RegisterTest(("Conformance/" + backend.name).c_str(), (one.name + "_" + std::to_string(size)).c_str(),
                              nullptr, nullptr, __FILE__, __LINE__, [&backend, &one, size]() -> ConformanceTest* {
                                return new ConformanceTest(backend, one, size);
                              });
      }
    }
  }
}

// ---- a rank that is killed ----

std::int64_t now_us() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::microseconds(1); }

constexpr std::int64_t kVictim = 2;

// Ranks of the test below: reductions until one kills itself.
void reduce_until_killed(World& world, testing_support::FileStore& store) {
  const Group data = world.group().duplicate("data");
  try {
    for (int step = 0;; ++step) {
      if (step == 50 && world.rank() == kVictim) {
        store.set("killed at", std::to_string(now_us()));
        std::raise(SIGKILL);
      }
      at::Tensor tensor = at::full({1000}, world.rank(), at::kFloat);
      all_reduce_(tensor, data).wait();
    }
  } catch (const CommError& error) {
    store.set("noticed at " + std::to_string(world.rank()), std::to_string(now_us()));
    std::cout << error.what() << std::endl;
  }
}

TEST(HostProcesses, AllSurvivorsNameARankThatIsKilledAndNothingIsLeft) {
  auto outcome = testing_support::run_processes("ReduceUntilKilled", 4, milliseconds(90'000));
  testing_support::FileStore store(outcome.shared->path());
  EXPECT_TRUE(WIFSIGNALED(outcome.statuses[kVictim]) && WTERMSIG(outcome.statuses[kVictim]) == SIGKILL);
  const std::int64_t killed_at = std::stol(store.get("killed at", milliseconds(1)));
  const std::string victim = "rank 2 (pid " + std::to_string(outcome.pids[kVictim]) + ") died";
  for (const std::size_t rank : {0, 1, 3}) {
    EXPECT_EQ(outcome.statuses[rank], 0) << outcome.outputs[rank];
    EXPECT_NE(outcome.outputs[rank].find(victim), std::string::npos) << outcome.outputs[rank];
    EXPECT_NE(outcome.outputs[rank].find("all_reduce(sum, float32 x 1000) #"), std::string::npos)
        << outcome.outputs[rank];
    EXPECT_NE(outcome.outputs[rank].find("of group 'data' [0,1,2,3]"), std::string::npos) << outcome.outputs[rank];
    const std::int64_t noticed_us =
        std::stol(store.get("noticed at " + std::to_string(rank), milliseconds(1))) - killed_at;
    std::cout << "rank " << rank << " noticed after " << static_cast<double>(noticed_us) / 1000.0
              << " ms: " << outcome.outputs[rank];
    EXPECT_LT(noticed_us, 2'000'000);
    EXPECT_NE(outcome.outputs[rank].find("\nheld: anon_inode:[pidfd]; "), std::string::npos) << outcome.outputs[rank];
    EXPECT_NE(outcome.outputs[rank].find("mapping of memfd:espalier\nleft: \n"), std::string::npos)
        << outcome.outputs[rank];
    EXPECT_TRUE(::kill(outcome.pids[rank], 0) != 0) << "process " << outcome.pids[rank] << " is still there";
  }
}

// ---- what is lost when a world is closed ----

// Runs two ranks over host with arenas of 1 MiB; the lines they log.
std::string log_of_two(milliseconds timeout, const std::function<void(World&)>& body) {
  std::mutex mutex;
  std::string lines;
  const LogSink sink = [&](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines += fmt::format("{}\n", line);
  };
  WorldOptions options;
  options.timeout = timeout;
  options.log = sink;
  detail::run_threads(
      detail::make_host_transports_for_threads(2, {.timeout = timeout, .arena_bytes = 1 << 20, .log = sink}),
      Backend::host, body, options);
  return lines;
}

TEST(HostClose, SaysWhatIsLostWhenItsReceiverLeavesFirst) {
  const auto start = std::chrono::steady_clock::now();
  const std::string log = log_of_two(milliseconds(20'000), [](World& world) {
    // Far more than the receiver can take out of the sender's way while it is in the barrier.
    if (world.rank() == 0) const Work dropped = send(at::zeros({25'000'000}), world.group(), 1, 7);
    barrier(world.group()).wait();
  });
  EXPECT_NE(
      log.find(
          "[rank 0] warning: host backend: the world was closed before send(float32 x 25000000) to rank 1, tag 7, #0 "
          "of group 'world' [0,1] was handed over, and it is lost: rank 1 (thread of pid "),
      std::string::npos)
      << log;
  EXPECT_NE(log.find("has left without taking part\n"), std::string::npos) << log;
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10'000));
}

TEST(HostClose, WaitsForAReceiverUntilTheDeadlineOnly) {
  const std::string log = log_of_two(milliseconds(200), [](World& world) {
    barrier(world.group()).wait();
    if (world.rank() == 0) const Work dropped = send(at::zeros({1'000'000}), world.group(), 1, 7);
    if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(1500));
  });
  EXPECT_NE(log.find("was handed over, and it is lost: not taken within 200 ms by rank 1 (thread of pid "),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("its last call is barrier() #0 of group 'world' [0,1]\n"), std::string::npos) << log;
}

TEST(HostClose, LosesNothingInSilenceOfACollectiveThatNobodyWaitedFor) {
  std::vector<at::Tensor> sums(2);
  const std::string log = log_of_two(milliseconds(20'000), [&](World& world) {
    at::Tensor sum = at::ones({1'000'000});
    sums[static_cast<std::size_t>(world.rank())] = sum;
    Work work = all_reduce_(sum, world.group());
    if (world.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(300));
      work.wait();
    }
  });
  EXPECT_TRUE(sums[1].equal(at::full({1'000'000}, 2.0))) << sums[1][0].item<float>();
  EXPECT_EQ(log, "");
}

TEST(HostProcesses, RefusesARankThatIsStartedTwice) {
  const auto outcome = testing_support::run_processes("SameRankTwice", 4, milliseconds(90'000));
  const std::string text = testing_support::FileStore(outcome.shared->path()).get("refused", milliseconds(1));
  EXPECT_NE(text.find("rank 1 was started twice: process "), std::string::npos) << text;
  for (const int status : outcome.statuses) EXPECT_EQ(status, 0);
}

TEST(HostProcesses, NamesTheRanksThatDoNotCome) {
  const auto outcome = testing_support::run_processes("RankDoesNotCome", 3, milliseconds(90'000));
  EXPECT_NE(outcome.outputs[0].find("waited 3000 ms for all 3 ranks; missing: 2"), std::string::npos)
      << outcome.outputs[0];
}

World gloo_world(const testing_support::RankProcess& process, const Case& one) {
  auto file = c10::make_intrusive<c10d::FileStore>(process.folder / "c10d", static_cast<int>(process.size));
  auto transport = detail::make_gloo_transport(std::make_shared<detail::C10dStore>(std::move(file)), process.rank,
                                               process.size, {.timeout = one.timeout});
  return detail::make_world(
      {.rank = process.rank, .size = process.size, .host = "here", .launcher = "test", .backend = Backend::gloo},
      std::move(transport), options_of(one));
}

// main() of a process that is a rank; its exit code.
int run_rank(const testing_support::RankProcess& process) {
  at::set_num_threads(1);
  testing_support::FileStore store(process.folder);
  const auto world = [&](const detail::HostOptions& host, const WorldOptions& options) {
    auto transport = process.size == 1 ? nullptr : detail::make_host_transport(store, process.rank, process.size, host);
    return detail::make_world({.rank = process.rank,
                               .size = process.size,
                               .local_rank = process.rank,
                               .local_size = process.size,
                               .host = "here",
                               .launcher = "test"},
                              std::move(transport), options);
  };
  try {
    if (process.body == "ReduceUntilKilled") {
      const auto before = testing_support::own_resources();
      {
        World all = world({}, {});
        reduce_until_killed(all, store);
        std::cout << "held: " << testing_support::newly_held(before) << "\n";
      }
      std::cout << "left: " << testing_support::newly_held(before) << "\n";
      return 0;
    }
    if (process.body == "SameRankTwice") {  // ranks 0, 1, 2 and 1 again; rank 2 joins after the second has been refused
      if (process.rank == 2) store.get("refused", milliseconds(60'000));
      try {
        (void)detail::make_host_transport(store, process.rank == 3 ? 1 : process.rank, 3,
                                          {.timeout = milliseconds(60'000)});
      } catch (const ConfigError& error) {
        store.set("refused", error.what());
      }
      return 0;
    }
    if (process.body == "RankDoesNotCome") {
      if (process.rank != 2) world({.timeout = milliseconds(3000)}, {});
      return 0;
    }
    for (const Case& one : cases()) {
      if (one.name == process.body) {
        World all = world(host_options_of(one), options_of(one));
        one.body(all, {});
        return 0;
      }
      if (kOverGloo + one.name == process.body) {
        World all = gloo_world(process, one);
        one.body(all, kAsOverGloo);
        return 0;
      }
    }
    std::cerr << "no body '" << process.body << "'\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
  }
  return 1;
}

}  // namespace
}  // namespace espalier::conformance

int main(int argc, char** argv) {
  if (const auto process = espalier::testing_support::this_rank_process())
    return espalier::conformance::run_rank(*process);
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  espalier::conformance::register_cases();
  return RUN_ALL_TESTS();
}
