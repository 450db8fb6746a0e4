// SPDX-License-Identifier: Apache-2.0
// `espalier bench`: what collectives cost here, in the manner of nccl-tests. A time is that of one call on the slowest
// rank; backends take turns, round by round, so that all see the same machine; every round begins with a call whose
// result is compared, element by element, with what it must be.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/espalier_train/commands.hpp"
#include "apps/espalier_train/self_launch.hpp"
#include "espalier/base/check.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/mesh.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/plan/layout/layout.hpp"

namespace espalier::command {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWrongResults = 1;  // exit code
constexpr double kSecondsARound = 0.02;
constexpr std::int64_t kMostCallsARound = 500;

// ---- operations ----

struct Buffers {
  at::Tensor input, output;
};

// Bandwidths are those of nccl-tests: `bus_factor` times bytes over time, where bytes are those of the larger buffer.
struct Operation {
  std::string_view name;
  bool cut;  // one of the buffers holds a part of the other for each member
  double (*bus_factor)(double size);
  Buffers (*filled)(std::int64_t count, const at::TensorOptions& options, const Group& group);
  at::Tensor (*expected)(const Buffers& buffers, const Group& group);
  Work (*start)(Buffers& buffers, const Group& group);
};

at::Tensor filled(std::int64_t count, const at::TensorOptions& options, std::int64_t value) {
  return at::full({count}, value, options);
}

// `part` elements for each member, of the value that belongs to it.
template <class F>
at::Tensor parts(std::int64_t part, const at::TensorOptions& options, const Group& group, const F& value) {
  at::Tensor result = at::empty({group.size(), part}, options);
  for (std::int64_t member = 0; member < group.size(); ++member) result[member].fill_(value(member));
  return result.flatten();
}

std::int64_t sum_of_ranks(const Group& group) { return group.size() * (group.size() + 1) / 2; }
std::int64_t next(const Group& group) { return (group.rank() + 1) % group.size(); }
std::int64_t previous(const Group& group) { return (group.rank() + group.size() - 1) % group.size(); }
std::int64_t from_to(std::int64_t from, std::int64_t to) { return (from + 2 * to) % 5; }

double once(double) { return 1.0; }
double others(double size) { return (size - 1) / size; }
double there_and_back(double size) { return 2 * (size - 1) / size; }

// Inputs are rank + 1 unless said otherwise.
Buffers in_place(std::int64_t count, const at::TensorOptions& options, const Group& group) {
  return {{}, filled(count, options, group.rank() + 1)};
}
Buffers two(std::int64_t count, const at::TensorOptions& options, const Group& group) {
  return {filled(count, options, group.rank() + 1), filled(count, options, 0)};
}

const std::array kOperations{
    Operation{"all_reduce", false, there_and_back, in_place,
              [](const Buffers& b, const Group& group) { return at::full_like(b.output, sum_of_ranks(group)); },
              [](Buffers& b, const Group& group) { return all_reduce_(b.output, group); }},
    Operation{"reduce_scatter", true, others,
              [](std::int64_t count, const at::TensorOptions& options, const Group& group) {
                return Buffers{filled(count, options, group.rank() + 1), filled(count / group.size(), options, 0)};
              },
              [](const Buffers& b, const Group& group) { return at::full_like(b.output, sum_of_ranks(group)); },
              [](Buffers& b, const Group& group) { return reduce_scatter_into(b.output, b.input, group); }},
    Operation{"all_gather", true, others,
              [](std::int64_t count, const at::TensorOptions& options, const Group& group) {
                return Buffers{filled(count / group.size(), options, group.rank() + 1), filled(count, options, 0)};
              },
              [](const Buffers& b, const Group& group) {
                return parts(b.input.numel(), b.output.options(), group,
                             [](std::int64_t member) { return member + 1; });
              },
              [](Buffers& b, const Group& group) { return all_gather_into(b.output, b.input, group); }},
    Operation{"all_to_all", true, others,
              [](std::int64_t count, const at::TensorOptions& options, const Group& group) {
                return Buffers{parts(count / group.size(), options, group,
                                     [&](std::int64_t to) { return from_to(group.rank(), to); }),
                               filled(count, options, 0)};
              },
              [](const Buffers& b, const Group& group) {
                return parts(b.input.numel() / group.size(), b.output.options(), group,
                             [&](std::int64_t from) { return from_to(from, group.rank()); });
              },
              [](Buffers& b, const Group& group) { return all_to_all_into(b.output, b.input, group); }},
    Operation{"broadcast", false, once, in_place,
              [](const Buffers& b, const Group&) { return at::ones_like(b.output); },
              [](Buffers& b, const Group& group) { return broadcast_(b.output, group, 0); }},
    Operation{"reduce", false, once, in_place,
              [](const Buffers& b, const Group& group) {
                return at::full_like(b.output, group.rank() == 0 ? sum_of_ranks(group) : group.rank() + 1);
              },
              [](Buffers& b, const Group& group) { return reduce_(b.output, group, 0); }},
    Operation{"gather", true, others,
              [](std::int64_t count, const at::TensorOptions& options, const Group& group) {
                return Buffers{filled(count / group.size(), options, group.rank() + 1), filled(count, options, 0)};
              },
              [](const Buffers& b, const Group& group) {
                return parts(b.input.numel(), b.output.options(), group,
                             [&](std::int64_t member) { return group.rank() == 0 ? member + 1 : 0; });
              },
              [](Buffers& b, const Group& group) { return gather_into(b.output, b.input, group, 0); }},
    Operation{"scatter", true, others,
              [](std::int64_t count, const at::TensorOptions& options, const Group& group) {
                return Buffers{parts(count / group.size(), options, group,
                                     [&](std::int64_t to) { return from_to(group.rank(), to); }),
                               filled(count / group.size(), options, 0)};
              },
              [](const Buffers& b, const Group& group) { return at::full_like(b.output, from_to(0, group.rank())); },
              [](Buffers& b, const Group& group) { return scatter_into(b.output, b.input, group, 0); }},
    // Around the ring.
    Operation{"send_recv", false, once, two,
              [](const Buffers& b, const Group& group) { return at::full_like(b.output, previous(group) + 1); },
              [](Buffers& b, const Group& group) {
                send(b.input, group, next(group)).wait();
                return recv(b.output, group, previous(group));
              }},
    // From the first member to the second and back; the others look on.
    Operation{"ping_pong", false, [](double) { return 2.0; }, two,
              [](const Buffers& b, const Group& group) { return at::full_like(b.output, group.rank() < 2 ? 1 : 0); },
              [](Buffers& b, const Group& group) {
                if (group.rank() == 0) {
                  send(b.input, group, 1).wait();
                  return recv(b.output, group, 1);
                }
                if (group.rank() != 1) return Work();
                recv(b.output, group, 0).wait();
                return send(b.output, group, 0);
              }},
    Operation{"barrier", false, [](double) { return 0.0; },
              [](std::int64_t, const at::TensorOptions&, const Group&) { return Buffers(); }, nullptr,
              [](Buffers&, const Group& group) { return barrier(group); }},
};

// ---- the request ----

struct BenchOptions {
  std::vector<std::string> ops{"all_reduce"};
  std::string backend = "host";
  std::vector<std::string> against;
  std::optional<std::int64_t> ranks;
  std::string layout;
  std::vector<std::string> groups;
  std::vector<std::string> sizes{"1KiB:64MiB"};
  std::string dtype = "float32";
  std::string memory = "ordinary";
  std::int64_t rounds = 11;
  bool json = false;
};

template <class Range, class Name>
const auto& by_name(const Range& range, std::string_view wanted, std::string_view what, const Name& name) {
  const auto found = std::ranges::find(range, wanted, name);
  if (found != std::ranges::end(range)) return *found;
  std::vector<std::string_view> names;
  for (const auto& each : range) names.push_back(name(each));
  throw ConfigError(fmt::format("bench: there is no {} '{}'; choose among {}", what, wanted, fmt::join(names, ", ")));
}

c10::ScalarType dtype_by_name(std::string_view name) {
  using enum c10::ScalarType;
  static constexpr std::array kDtypes{
      std::pair{std::string_view("float32"), Float}, std::pair{std::string_view("float64"), Double},
      std::pair{std::string_view("float16"), Half},  std::pair{std::string_view("bfloat16"), BFloat16},
      std::pair{std::string_view("int64"), Long},    std::pair{std::string_view("int32"), Int},
      std::pair{std::string_view("int16"), Short},   std::pair{std::string_view("int8"), Char},
      std::pair{std::string_view("uint8"), Byte}};
  return by_name(kDtypes, name, "dtype", [](const auto& each) { return each.first; }).second;
}

// "4096", "16KiB", "1MiB", "2GiB".
std::int64_t parse_size(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, text.data() + text.size());
  const int shift = unit.empty() || unit == "B" ? 0 : unit == "KiB" ? 10 : unit == "MiB" ? 20 : unit == "GiB" ? 30 : -1;
  ESPALIER_CHECK_CONFIG(error == std::errc() && shift >= 0 && number > 0 && number <= (std::int64_t{1} << 40) >> shift,
                        "bench: size '{}'; expected bytes up to 1024GiB such as 4096, 16KiB, 1MiB", text);
  return number << shift;
}

// Each word is a size, or a range FROM:TO whose sizes are four times the one before.
std::vector<std::int64_t> parse_sizes(const std::vector<std::string>& words) {
  std::vector<std::int64_t> sizes;
  for (const std::string_view word : words) {
    const auto colon = word.find(':');
    const std::int64_t from = parse_size(word.substr(0, colon)),
                       to = colon == word.npos ? from : parse_size(word.substr(colon + 1));
    ESPALIER_CHECK_CONFIG(from <= to, "bench: sizes {}; expected the smaller one first", word);
    for (std::int64_t size = from; size <= to; size *= 4) sizes.push_back(size);
  }
  return sizes;
}

std::string size_text(std::int64_t bytes) {
  for (const auto& [shift, unit] : {std::pair{30, "GiB"}, std::pair{20, "MiB"}, std::pair{10, "KiB"}}) {
    if (bytes >> shift << shift == bytes && bytes >> shift > 0) return fmt::format("{} {}", bytes >> shift, unit);
  }
  return fmt::format("{} B", bytes);
}

// ---- measuring ----

// One backend: its world, and the groups that communicate at the same time.
struct Contender {
  Backend backend;
  World world;
  std::vector<Group> groups;
  std::vector<double> us;  // of every timed call
  std::int64_t num_wrong = 0;
};

struct Bench {
  const World& control;  // what ranks agree over
  c10::ScalarType dtype;
  std::int64_t rounds;
  bool in_host_buffers;

  std::vector<double> largest(std::vector<double> values) const {
    at::Tensor tensor = at::tensor(values, at::kDouble);
    all_reduce_(tensor, control.group(), ReduceOp::max).wait();
    return {tensor.const_data_ptr<double>(), tensor.const_data_ptr<double>() + tensor.numel()};
  }

  static void call(const Operation& operation, std::vector<Buffers>& buffers, const std::vector<Group>& groups) {
    std::vector<Work> works;
    for (std::size_t i = 0; i < groups.size(); ++i) works.push_back(operation.start(buffers[i], groups[i]));
    wait_all(works);
  }

  std::vector<Buffers> buffers_of(const Operation& operation, const Contender& contender, std::int64_t bytes) const {
    std::vector<Buffers> buffers;
    for (const Group& group : contender.groups)
      buffers.push_back(operation.filled(count_of(operation, group, bytes), dtype, group));
    for (Buffers& each : buffers) {
      if (!in_host_buffers) break;
      for (at::Tensor* tensor : {&each.input, &each.output}) {
        if (tensor->defined()) *tensor = contender.world.host_buffer(tensor->sizes(), dtype).copy_(*tensor);
      }
    }
    return buffers;
  }

  // Whole parts, one for each member, at least one element each.
  std::int64_t count_of(const Operation& operation, const Group& group, std::int64_t bytes) const {
    const std::int64_t parts = operation.cut ? group.size() : 1;
    return std::max<std::int64_t>(1, bytes / (parts * static_cast<std::int64_t>(c10::elementSize(dtype)))) * parts;
  }

  // A call whose result is looked at, then `calls` that are timed.
  void round(const Operation& operation, Contender& contender, std::int64_t bytes, std::int64_t calls) const {
    std::vector<Buffers> buffers = buffers_of(operation, contender, bytes);
    call(operation, buffers, contender.groups);
    for (std::size_t i = 0; operation.expected != nullptr && i < buffers.size(); ++i) {
      contender.num_wrong +=
          buffers[i].output.ne(operation.expected(buffers[i], contender.groups[i])).sum().item<std::int64_t>();
      if (!buffers[i].input.defined()) buffers[i].output.zero_();  // sums of sums stay finite
    }
    barrier(control.group()).wait();
    std::vector<double> us;
    for (std::int64_t i = 0; i < calls; ++i) {
      const auto begin = Clock::now();
      call(operation, buffers, contender.groups);
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    us = largest(std::move(us));
    contender.us.insert(contender.us.end(), us.begin(), us.end());
  }

  void run(const Operation& operation, std::vector<Contender>& contenders, std::int64_t bytes) const {
    std::vector<std::int64_t> calls;
    for (Contender& contender : contenders) {
      round(operation, contender, bytes, 3);
      const double seconds = 1e-6 * *std::ranges::min_element(contender.us);
      calls.push_back(
          std::clamp(static_cast<std::int64_t>(kSecondsARound / seconds), std::int64_t{1}, kMostCallsARound));
      contender.us.clear();
      contender.num_wrong = 0;
    }
    for (std::int64_t i = 0; i < rounds; ++i) {
      for (std::size_t c = 0; c < contenders.size(); ++c) round(operation, contenders[c], bytes, calls[c]);
    }
    for (Contender& contender : contenders) {
      at::Tensor wrong = at::full({1}, contender.num_wrong, at::kLong);
      all_reduce_(wrong, control.group()).wait();
      contender.num_wrong = wrong.item<std::int64_t>();
      std::ranges::sort(contender.us);
    }
  }
};

// The smallest value that at least this share of the values does not exceed.
double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size()))) - 1];
}

// ---- the report ----

void print_header(const Bench& bench, const std::vector<Contender>& contenders) {
  const World& world = bench.control;
  fmt::print("{} ranks ({}) on {}; times in us, of the slowest rank; bandwidths in GB/s at the median\n", world.size(),
             world.launcher(), world.host_of_rank().empty() ? "one host" : "several hosts");
  if (bench.in_host_buffers) fmt::print("tensors made by World::host_buffer, which over host save copies\n");
  if (contenders.front().groups.size() > 1) fmt::print("all groups at the same time: the times are of all together\n");
  fmt::print("\n{:<15} {:<8} {:<10} {:>5} {:>9} {:>10} {:>9} {:>10} {:>10} {:>10} {:>10} {:>8} {:>8} {:>6}{}\n",
             "operation", "backend", "group", "ranks", "size", "count", "dtype", "min", "median", "p99", "max", "algbw",
             "busbw", "wrong",
             contenders.size() > 1 ? fmt::format("  / {}", to_string(contenders.front().backend)) : "");
}

nlohmann::ordered_json row(const Bench& bench, const Operation& operation, const Contender& contender,
                           const Group& group, const std::string& family, std::string_view dtype, std::int64_t bytes,
                           double baseline_us) {
  const bool moves = operation.expected != nullptr;
  const std::int64_t count = moves ? bench.count_of(operation, group, bytes) : 0;
  const auto moved = static_cast<double>(count) * static_cast<double>(c10::elementSize(bench.dtype));
  const double median = quantile(contender.us, 0.5);
  const double algorithm = moved / median * 1e-3;
  return {{"operation", operation.name},
          {"backend", to_string(contender.backend)},
          {"group", family},
          {"ranks", group.size()},
          {"bytes", static_cast<std::int64_t>(moved)},
          {"count", count},
          {"dtype", dtype},
          {"calls", contender.us.size()},
          {"min_us", contender.us.front()},
          {"median_us", median},
          {"p99_us", quantile(contender.us, 0.99)},
          {"max_us", contender.us.back()},
          {"algorithm_gb_s", algorithm},
          {"bus_gb_s", algorithm * operation.bus_factor(static_cast<double>(group.size()))},
          {"wrong", contender.num_wrong},
          {"time_over_first", median / baseline_us}};
}

void print_row(const nlohmann::ordered_json& row, bool compares) {
  fmt::print(
      "{:<15} {:<8} {:<10} {:>5} {:>9} {:>10} {:>9} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>8.3f} {:>8.3f} {:>6}{}\n",
      row["operation"].get<std::string>(), row["backend"].get<std::string>(), row["group"].get<std::string>(),
      row["ranks"].get<std::int64_t>(), size_text(row["bytes"].get<std::int64_t>()), row["count"].get<std::int64_t>(),
      row["dtype"].get<std::string>(), row["min_us"].get<double>(), row["median_us"].get<double>(),
      row["p99_us"].get<double>(), row["max_us"].get<double>(), row["algorithm_gb_s"].get<double>(),
      row["bus_gb_s"].get<double>(), row["wrong"].get<std::int64_t>(),
      compares ? fmt::format("  {:.2f}", row["time_over_first"].get<double>()) : "");
  std::fflush(stdout);
}

// ---- the command ----

struct Request {
  std::vector<const Operation*> operations;
  std::vector<Backend> backends;
  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype;
  bool in_host_buffers;
};

// To start here: 2, unless the request says it.
std::optional<std::int64_t> num_ranks(const BenchOptions& options) {
  if (options.ranks || options.layout.empty()) return options.ranks.value_or(2);
  return num_ranks_of(Layout::parse(options.layout));
}

// What is wrong with the request is found here, before any rank starts.
Request checked(const BenchOptions& options) {
  constexpr std::array kMemories{std::string_view("ordinary"), std::string_view("host_buffer")};
  Request request{.operations = {},
                  .backends = {backend_by_name(options.backend)},
                  .sizes = parse_sizes(options.sizes),
                  .dtype = dtype_by_name(options.dtype),
                  .in_host_buffers = by_name(kMemories, options.memory, "memory", std::identity()) == "host_buffer"};
  for (const std::string& name : options.ops) {
    if (name == "all") {
      for (const Operation& each : kOperations) request.operations.push_back(&each);
    } else {
      request.operations.push_back(
          &by_name(kOperations, name, "operation", [](const Operation& each) { return each.name; }));
    }
  }
  for (const std::string& name : options.against) {
    request.backends.push_back(backend_by_name(name));
    ESPALIER_CHECK_CONFIG(std::ranges::count(request.backends, request.backends.back()) == 1,
                          "bench: backend {} twice; --against names the others", name);
  }
  ESPALIER_CHECK_CONFIG(
      options.groups.empty() == options.layout.empty(),
      "bench: --groups names families of the --layout: give both, or neither for one group of all ranks");
  ESPALIER_CHECK_CONFIG(options.rounds > 0, "bench: {} rounds; expected one or more", options.rounds);
  if (const auto ranks = num_ranks(options); ranks && !options.layout.empty()) {
    const Layout layout(Layout::parse(options.layout), *ranks);
    for (const std::string& family : options.groups) layout.group(family, 0);
  }
  return request;
}

void bench_on_rank(const BenchOptions& options, const Request& request) {
  at::set_num_threads(1);
  std::vector<Contender> contenders;
  for (const Backend backend : request.backends) {
    const World world = World::from_environment({.backend = backend, .log = stderr_sink(LogLevel::warning)});
    Contender contender{backend, world, {}, {}};
    if (options.layout.empty()) {
      contender.groups.push_back(world.group());
    } else {
      const Mesh mesh(world, Layout::parse(options.layout));
      for (const std::string& family : options.groups) contender.groups.push_back(mesh.group(family));
    }
    contenders.push_back(std::move(contender));
  }
  const Bench bench{contenders.front().world, request.dtype, options.rounds, request.in_host_buffers};
  const bool prints = bench.control.rank() == 0;
  for (const Group& group : contenders.front().groups) {
    ESPALIER_CHECK_CONFIG(group.size() > 1, "bench: group '{}' has one member, so nothing is sent; expected 2 or more",
                          group.name());
  }
  if (prints && !options.json) print_header(bench, contenders);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::int64_t num_wrong = 0;
  for (const Operation* operation : request.operations) {
    for (const std::int64_t bytes : operation->expected == nullptr ? std::vector<std::int64_t>{1} : request.sizes) {
      bench.run(*operation, contenders, bytes);
      for (Contender& contender : contenders) {
        num_wrong += contender.num_wrong;
        for (std::size_t i = 0; i < contender.groups.size(); ++i) {
          rows.push_back(row(bench, *operation, contender, contender.groups[i],
                             options.groups.empty() ? "world" : options.groups[i], options.dtype, bytes,
                             quantile(contenders.front().us, 0.5)));
          if (prints && !options.json) print_row(rows.back(), contenders.size() > 1);
        }
      }
      for (Contender& contender : contenders) contender.us.clear();
    }
  }
  if (prints && options.json) fmt::print("{}\n", rows.dump(2));
  if (num_wrong > 0) throw CLI::RuntimeError(kWrongResults);
}

void run_bench(const BenchOptions& options) {
  const Request request = checked(options);
  run_as_ranks("bench", num_ranks(options), [&] { bench_on_rank(options, request); });
}

}  // namespace

void add_bench(CLI::App& app) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* sub = app.add_subcommand("bench", "Time collectives over one backend, or several in turn");
  sub->footer(
      "Every call's time is that of the slowest rank. Bandwidths are those of nccl-tests: algbw is size over time, busbw what a\n"
      "link carries of it. Exit code 1 when a result was wrong. Over mpi: espalier run --backend mpi -n 4 -- espalier bench ...");
  sub->add_option("--op", options->ops, "Operations, or all")->delimiter(',')->capture_default_str();
  sub->add_option("--backend", options->backend, "host, gloo, hierarchical or mpi")->capture_default_str();
  sub->add_option("--against", options->against,
                  "Backends that take turns with it; their times are also given over its own")
      ->delimiter(',');
  sub->add_option("--ranks", options->ranks, "How many ranks to start here (default: the layout's, else 2)");
  sub->add_option("--layout", options->layout, "Sizes of the axes, for --groups: data=2,tensor=2");
  sub->add_option("--groups", options->groups,
                  "Families whose groups communicate at the same time: data,tensor (default: all ranks)")
      ->delimiter(',');
  sub->add_option("--sizes", options->sizes, "Bytes of the larger buffer: 4KiB,1MiB, or a range by factors of 4")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option("--dtype", options->dtype, "float32, float64, float16, bfloat16, int64, int32, int16, int8, uint8")
      ->capture_default_str();
  sub->add_option("--memory", options->memory, "ordinary, or host_buffer: tensors made by World::host_buffer")
      ->capture_default_str();
  sub->add_option("--rounds", options->rounds, "Turns of each backend, of about 20 ms")->capture_default_str();
  sub->add_flag("--json", options->json, "All rows as JSON");
  sub->callback([options] { run_bench(*options); });
}

}  // namespace espalier::command
