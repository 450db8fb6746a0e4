// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/rank.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <regex>
#include <thread>

#include "espalier/base/error.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/together.hpp"
#include "espalier/comm/world_state.hpp"
#include "espalier/plan/launch/environment.hpp"
#include "espalier/plan/seed.hpp"
#include "espalier/sharding/tensor_file.hpp"
#include "tests/chaos/player.hpp"
#include "tests/comm/file_store.hpp"
#include "tests/support/own_resources.hpp"
#include "tests/support/small_disk.hpp"

namespace espalier::chaos {
namespace {

// While it lives, this process can open no more than `more` descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::int64_t more) {
    ::getrlimit(RLIMIT_NOFILE, &old_);
    const int next = ::dup(0);
    ::close(next);
    const rlimit limit{.rlim_cur = static_cast<rlim_t>(next + more), .rlim_max = old_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &old_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit old_{};
};

World join(const Trial& trial, std::int64_t rank, const Meeting& meeting) {
  WorldOptions options;
  options.timeout = std::chrono::milliseconds(trial.timeout_ms);
  options.log = nullptr;
  const std::int64_t size = trial.program.num_ranks;
  if (trial.from_environment) {
    const Variables variables =
        variables_of_rank(process_variables(), {.rank = rank,
                                                .num_ranks = size,
                                                .local_rank = rank,
                                                .local_size = size,
                                                .address = "127.0.0.1",
                                                .port = meeting.port,
                                                .store_descriptor = rank == 0 ? meeting.listener : -1,
                                                .job = "chaos"});
    ::clearenv();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    return World::from_environment(options);
  }
  testing_support::FileStore store(meeting.folder);
  auto transport = detail::make_host_transport(
      store, rank, size, {.timeout = options.timeout, .arena_bytes = trial.arena_bytes, .log = nullptr});
  return detail::make_world({.rank = rank,
                             .size = size,
                             .local_rank = rank,
                             .local_size = size,
                             .host = "here",
                             .launcher = "chaos",
                             .backend = Backend::host},
                            std::move(transport), options);
}

std::string saved_file(const Meeting& meeting, std::int64_t rank) {
  return fmt::format("{}/rank-{}.safetensors", meeting.folder, rank);
}

// All ranks save, for the `number`-th time; the second time fails on the victim, and then all must hear of it.
void save_together(const Trial& trial, const World& world, const Meeting& meeting, int number) {
  const std::string path = saved_file(meeting, world.rank());
  at::Tensor tensor = at::empty({12'500}, at::kLong);
  std::fill_n(tensor.mutable_data_ptr<std::int64_t>(), tensor.numel(), number);
  const bool fails = number == 2;
  std::string error;
  {
    std::optional<testing_support::SmallDisk> disk;
    std::optional<FewDescriptors> few;
    if (fails && world.rank() == trial.fault.victim) {
      if (trial.fault.kind == FaultKind::full_disk) disk.emplace(50'000);
      if (trial.fault.kind == FaultKind::no_descriptors) few.emplace(0);
    }
    try {
      detail::together(world.group(), [&] { write_tensor_file(path, {{{"saved", tensor}}}); });
    } catch (const ConfigError& trouble) {
      error = trouble.what();
    }
  }
  if (fails != (error.find(saved_file(meeting, trial.fault.victim)) != std::string::npos)) {
    throw WrongResult(fmt::format("saving number {} on rank {} gave '{}'", number, world.rank(), error));
  }
  const int expected = fails && world.rank() == trial.fault.victim ? 1 : number;
  const at::Tensor found = TensorFile(path).read("saved");
  const std::int64_t* begin = found.const_data_ptr<std::int64_t>();
  if (std::count(begin, begin + found.numel(), expected) != tensor.numel()) {
    throw WrongResult(fmt::format("{} is not what was saved as number {}", path, expected));
  }
}

void play(const Trial& trial, std::int64_t rank, const Meeting& meeting, Board& board, bool& joined) {
  const Fault& fault = trial.fault;
  const bool is_victim = rank == fault.victim;
  const auto strike_now = [&] {
    fault.at_any_instant ? strike_later(fault.kind, fault.delay, board.struck_us) : strike(fault.kind, board.struck_us);
  };
  std::optional<FewDescriptors> few;
  if (is_victim && fault.while_joining) {
    if (fault.kind == FaultKind::no_descriptors) few.emplace(fault.descriptors);
    strike_now();
  }
  const World world = join(trial, rank, meeting);
  few.reset();
  joined = true;

  const std::chrono::milliseconds patience(trial.patience_ms);
  Player player(trial.program, world, patience);
  Random random(derive_seed(trial.seed, "chaos pauses", {rank}));
  const auto altered = is_victim ? steps_of_victim(fault, trial.program) : std::vector<std::vector<Step>>{};
  int num_saved = 0;
  for (std::size_t number = 0; number < trial.program.steps.size(); ++number) {
    if (is_victim && number == fault.step && !fault.while_joining) strike_now();
    if (is_victim && fault.kind == FaultKind::slow_peer && random.chance(0.2)) std::this_thread::sleep_for(fault.pause);
    const Step& step = trial.program.steps[number];
    if (step.kind == Kind::save) {
      save_together(trial, world, meeting, ++num_saved);
    } else if (is_victim) {
      for (const Step& other : altered[number]) player.play(other, number);
    } else {
      player.play(step, number);
    }
  }
  player.finish();
  if (is_victim && fault.at_any_instant) await_strike();
  barrier(world.group()).wait(patience);
}

template <std::size_t size>
void put(std::array<char, size>& room, const std::string& text) {
  const std::size_t length = std::min(text.size(), size - 1);
  std::memcpy(room.data(), text.data(), length);
  room[length] = '\0';
}

// What this process holds now and did not before, but for the pipe that libuv, in LibTorch's store, makes once and
// keeps, and for sockets with which that store still looks for its server, in a thread that a failed joining leaves
// behind.
std::string left_behind(const std::multiset<std::string>& before, bool joined) {
  std::string left = testing_support::newly_held(before);
  left =
      std::regex_replace(left, std::regex(R"((pipe:\[\d+\]); \1(; )?)"), "", std::regex_constants::format_first_only);
  return joined ? left : std::regex_replace(left, std::regex(R"(socket:\[\d+\](; )?)"), "");
}

}  // namespace

std::string errors_file(const Meeting& meeting, std::int64_t rank) {
  return fmt::format("{}/errors-{}", meeting.folder, rank);
}

int run_rank(const Trial& trial, std::int64_t rank, const Meeting& meeting, Board& board) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{};
  ::setrlimit(RLIMIT_CORE, &no_core);
  if (std::freopen(errors_file(meeting, rank).c_str(), "w", stderr) == nullptr) return 4;
  at::set_num_threads(1);
  Board::Entry& entry = board.ranks[static_cast<std::size_t>(rank)];
  const auto before = testing_support::own_resources();
  const auto end = [&](int code, const char* text) {
    entry.ended_us.store(now_us());
    put(entry.text, text);
    return code;
  };
  bool joined = false;
  const int code = [&] {
    try {
      play(trial, rank, meeting, board, joined);
      return end(0, "");
    } catch (const WrongResult& error) {
      return end(kWrongResult, error.what());
    } catch (const ConfigError& error) {
      return end(2, error.what());
    } catch (const CommError& error) {
      return end(3, error.what());
    } catch (const std::exception& error) {
      return end(4, error.what());
    }
  }();
  put(entry.left, left_behind(before, joined));
  return code;
}

}  // namespace espalier::chaos
