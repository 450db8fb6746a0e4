// SPDX-License-Identifier: Apache-2.0
// Random programs of operations:
//   chaos [--seeds A..B | --seed N] [--steps N] [--jobs N] [--verbose]   with a fault each, on ranks that are processes
//   chaos --soak OPERATIONS [--ranks N] [--as threads|processes] [--seed N]   without a fault, for long
// Exit code 0: all is as it must be; 1: it is not, and every failing seed has a line that says how to replay it; 2: the
// command line is wrong.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "tests/chaos/soak.hpp"
#include "tests/chaos/trial.hpp"

namespace espalier::chaos {
namespace {

struct Options {
  std::uint64_t first = 1, last = 100;
  std::int64_t steps = 40;
  std::int64_t jobs = 6;
  bool verbose = false;
  std::int64_t soak = 0;
  std::int64_t ranks = 8;
  std::string as = "threads";
};

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || after != end)
    throw CLI::ValidationError("--seeds", fmt::format("'{}' is no number", text));
  return value;
}

void take_seeds(std::string_view range, Options& options) {
  const std::size_t dots = range.find("..");
  options.first = number(range.substr(0, dots));
  options.last = dots == range.npos ? options.first : number(range.substr(dots + 2));
  if (options.last < options.first) throw CLI::ValidationError("--seeds", fmt::format("{} goes down", range));
}

void add_options(CLI::App& app, Options& options) {
  const auto seeds = [&](const std::string& range) { take_seeds(range, options); };
  CLI::Option* range = app.add_option_function<std::string>("--seeds", seeds, "FIRST..LAST")->default_str("1..100");
  CLI::Option* seed = app.add_option_function<std::uint64_t>(
      "--seed", [&](std::uint64_t one) { options.first = options.last = one; }, "One seed");
  CLI::Option* steps = app.add_option("--steps", options.steps, "Operations of a program, about");
  CLI::Option* jobs = app.add_option("--jobs", options.jobs, "Seeds at once; most of a seed is waiting");
  CLI::Option* verbose = app.add_flag("--verbose", options.verbose, "Every program, and its ranks' last words");
  CLI::Option* soak = app.add_option("--soak", options.soak, "One program of so many operations, without a fault");
  CLI::Option* ranks = app.add_option("--ranks", options.ranks, "Of a soak");
  CLI::Option* as = app.add_option("--as", options.as, "What a soak's ranks are: threads or processes");
  for (CLI::Option* option : {steps, jobs, ranks, as}) option->capture_default_str();
  for (CLI::Option* option : {steps, soak}) option->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}));
  jobs->check(CLI::Range(1, 1000));
  seed->excludes(range);
  soak->excludes(range, steps, jobs, verbose);
  ranks->needs(soak);
  as->check(CLI::IsMember({"threads", "processes"}))->needs(soak);
}

// What the process of one trial leaves to this one.
struct Result {
  FaultKind kind = FaultKind::none;
  bool done = false;
  bool failed = false;
  double noticed_ms = -1;
};

[[noreturn]] void run_one(std::uint64_t seed, const Options& options, Result& result) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Trial trial = make_trial(seed, options.steps);
  const Verdict verdict = run_trial(trial);
  result.kind = trial.fault.kind;
  result.failed = !verdict.complaints.empty();
  result.noticed_ms = verdict.noticed_ms;
  result.done = true;
  std::string lines;
  if (result.failed) {
    lines +=
        fmt::format("FAILED {}; replay: chaos --seed {} --steps {} --verbose\n", describe(trial), seed, options.steps);
    for (const std::string& complaint : verdict.complaints) lines += fmt::format("  {}\n", complaint);
  } else if (options.verbose) {
    lines += describe(trial) + "\n";
  }
  if (options.verbose) {
    for (std::size_t i = 0; i < trial.program.steps.size(); ++i) {
      lines += fmt::format("  step {}: {}\n", i, describe(trial.program, trial.program.steps[i]));
    }
    for (std::size_t rank = 0; rank < verdict.last_words.size(); ++rank) {
      lines += fmt::format("  rank {}: {}\n", rank, verdict.last_words[rank]);
    }
  }
  fmt::print("{}", lines);
  std::fflush(stdout);
  ::_exit(0);
}

int report(const std::vector<Result>& results) {
  struct Row {
    int seeds = 0, failed = 0;
    std::vector<double> noticed_ms;
  };
  std::map<FaultKind, Row> rows;
  Row all;
  for (const Result& result : results) {
    for (Row* row : {&rows[result.kind], &all}) {
      ++row->seeds;
      row->failed += result.failed || !result.done ? 1 : 0;
      if (result.noticed_ms >= 0) row->noticed_ms.push_back(result.noticed_ms);
    }
  }
  fmt::print("| fault | seeds | failed | last survivor knew: median | max |\n|---|---|---|---|---|\n");
  const auto line = [](std::string_view name, Row& row) {
    std::ranges::sort(row.noticed_ms);
    const bool none = row.noticed_ms.empty();
    fmt::print("| {} | {} | {} | {} | {} |\n", name, row.seeds, row.failed,
               none ? "" : fmt::format("{:.1f} ms", row.noticed_ms[row.noticed_ms.size() / 2]),
               none ? "" : fmt::format("{:.1f} ms", row.noticed_ms.back()));
  };
  for (auto& [kind, row] : rows) line(to_string(kind), row);
  line("all", all);
  return all.failed == 0 ? 0 : 1;
}

// This process has one thread and never calls LibTorch, so that its children may.
int run_all(const Options& options) {
  const std::size_t count = options.last - options.first + 1;
  void* memory = ::mmap(nullptr, count * sizeof(Result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* results = static_cast<Result*>(memory);  // zeros: none is done
  std::int64_t running = 0;
  for (std::uint64_t seed = options.first; seed <= options.last || running > 0;) {
    if (seed <= options.last && running < options.jobs) {
      std::fflush(stdout);
      const pid_t pid = ::fork();
      if (pid == 0) run_one(seed, options, results[seed - options.first]);
      if (pid < 0) return 1;
      ++seed;
      ++running;
      continue;
    }
    int status = 0;
    if (::wait(&status) > 0) --running;
  }
  for (std::uint64_t seed = options.first; seed <= options.last; ++seed) {
    if (!results[seed - options.first].done) {
      fmt::print("FAILED seed {}: its judge ended; replay: chaos --seed {} --steps {} --verbose\n", seed, seed,
                 options.steps);
    }
  }
  return report(std::vector<Result>(results, results + count));
}

}  // namespace
}  // namespace espalier::chaos

int main(int argc, char** argv) {
  using namespace espalier::chaos;
  CLI::App app("Random programs of operations, with a fault each, or for long.", "chaos");
  Options options;
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "chaos: {}; --help shows what it takes\n", error.what());
    return 2;
  }
  if (options.soak > 0) {
    return soak({.num_operations = options.soak,
                 .num_ranks = options.ranks,
                 .as_threads = options.as == "threads",
                 .seed = options.first});
  }
  return run_all(options);
}
