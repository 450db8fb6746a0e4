// SPDX-License-Identifier: Apache-2.0
// `espalier partition`: cuts a list of layers into pipeline stages and shows what each gets.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>

#include "apps/espalier/commands.hpp"
#include "espalier/base/error.hpp"
#include "espalier/plan/partition/partition.hpp"

namespace espalier::command {
namespace {

using nlohmann::ordered_json;

struct PartitionArguments {
  std::string weights;
  std::int64_t num_parts = 0;
  std::string method = "balanced";
  bool json = false;
};

struct Items {
  std::vector<std::string> names;  // empty strings where none were given
  std::vector<double> weights;
};

constexpr std::int64_t kMaxItems = 10'000;  // the balanced cut takes items^2 x parts steps

[[noreturn]] void refuse(std::string_view entry, std::string_view reason) {
  throw ConfigError(
      fmt::format("partition: weights: '{}' {}; entries are WEIGHT, NAME=WEIGHT or NAME=WEIGHTxCOUNT", entry, reason));
}

template <class Number>
Number number(std::string_view text, std::string_view entry) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    refuse(entry, fmt::format("holds '{}', not a number", text));
  return value;
}

// "5", "embed=5", "block=7x12", separated by commas.
Items parse(std::string_view text) {
  Items items;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t equals = entry.find('=');
    const std::string name(equals == std::string_view::npos ? "" : entry.substr(0, equals));
    std::string_view weight = equals == std::string_view::npos ? entry : entry.substr(equals + 1);
    std::int64_t count = 1;
    if (const std::size_t times = weight.find('x'); times != std::string_view::npos) {
      count = number<std::int64_t>(weight.substr(times + 1), entry);
      weight = weight.substr(0, times);
    }
    if (count < 1) refuse(entry, fmt::format("repeats {} times", count));
    if (count > kMaxItems || static_cast<std::int64_t>(items.weights.size()) + count > kMaxItems)
      refuse(entry, fmt::format("makes more than {} items", kMaxItems));
    items.weights.insert(items.weights.end(), static_cast<std::size_t>(count), number<double>(weight, entry));
    for (std::int64_t k = 0; k < count; ++k) items.names.push_back(count > 1 ? fmt::format("{}.{}", name, k) : name);
  }
  return items;
}

std::vector<std::int64_t> cut(const PartitionArguments& options, const Items& items) {
  if (options.method == "uniform")
    return partition_uniform(static_cast<std::int64_t>(items.weights.size()), options.num_parts);
  if (options.method == "deepspeed") return partition_deepspeed(items.weights, options.num_parts);
  if (options.method == "balanced") return partition_balanced(items.weights, options.num_parts);
  throw ConfigError(
      fmt::format("partition: method '{}' is unknown; there are balanced, uniform, deepspeed", options.method));
}

double largest(const std::vector<double>& loads) { return *std::max_element(loads.begin(), loads.end()); }

// "embed .. block.3", "3 .. 5" without names, "-" for none.
std::string range(const Items& items, std::int64_t begin, std::int64_t end) {
  const auto name = [&](std::int64_t i) { return items.names[i].empty() ? std::to_string(i) : items.names[i]; };
  if (begin == end) return "-";
  return end - begin == 1 ? name(begin) : name(begin) + " .. " + name(end - 1);
}

void print_partition(const PartitionArguments& options) {
  const Items items = parse(options.weights);
  const auto cuts = cut(options, items);
  const auto loads = part_loads(items.weights, cuts);
  const auto best = part_loads(items.weights, partition_balanced(items.weights, options.num_parts));
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  const double imbalance = mean > 0 ? largest(loads) / mean - 1 : 0.0;
  if (options.json) {
    ordered_json parts = ordered_json::array();
    for (std::size_t p = 0; p < loads.size(); ++p)
      parts.push_back({{"first", cuts[p]}, {"num_items", cuts[p + 1] - cuts[p]}, {"load", loads[p]}});
    const ordered_json result{{"method", options.method},
                              {"cuts", cuts},
                              {"parts", parts},
                              {"largest", largest(loads)},
                              {"mean", mean},
                              {"imbalance", imbalance},
                              {"smallest_possible_largest", largest(best)}};
    fmt::print("{}\n", result.dump());
    return;
  }
  std::size_t width = 5;
  for (std::size_t p = 0; p < loads.size(); ++p) width = std::max(width, range(items, cuts[p], cuts[p + 1]).size());
  fmt::print("{:>4}  {:<{}}  {:>5}  {:>12}\n", "part", "items", width, "count", "load");
  for (std::size_t p = 0; p < loads.size(); ++p) {
    const auto bar = static_cast<std::size_t>(largest(loads) > 0 ? 30 * loads[p] / largest(loads) + 0.5 : 0);
    const std::string line = fmt::format("{:>4}  {:<{}}  {:>5}  {:>12g}  {}", p, range(items, cuts[p], cuts[p + 1]),
                                         width, cuts[p + 1] - cuts[p], loads[p], std::string(bar, '#'));
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
  fmt::print("\ncuts       {}\nlargest    {:g}, {:.1f} % above the mean of {:g}\n", fmt::join(cuts, ","),
             largest(loads), 100 * imbalance, mean);
  if (largest(best) < largest(loads) * (1 - 1e-12)) fmt::print("possible   {:g} (method balanced)\n", largest(best));
}

}  // namespace

void add_partition(CLI::App& app) {
  const auto options = std::make_shared<PartitionArguments>();
  CLI::App* sub = app.add_subcommand("partition", "Cut a list of layers into stages and show their loads");
  sub->add_option("--weights", options->weights, "One entry a layer: 5,1,1,5 or embed=5,block=1x12,head=5")->required();
  sub->add_option("--parts", options->num_parts, "Number of parts (stages)")->required();
  sub->add_option("--method", options->method, "balanced, uniform or deepspeed")->capture_default_str();
  sub->add_flag("--json", options->json, "Print JSON");
  sub->callback([options] { print_partition(*options); });
}

}  // namespace espalier::command
