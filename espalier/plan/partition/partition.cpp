// SPDX-License-Identifier: Apache-2.0
// Contiguous items into parts. Loads are differences of running sums, so that the same part has the
// same load wherever it is compared. The balanced cut is found in three passes over the same
// recursion: the smallest possible largest load, with that the largest possible smallest load, with
// both the rightmost cuts.
#include "espalier/plan/partition/partition.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>
#include <set>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMaxParts = 1 << 24;

void require_parts(std::int64_t num_parts) {
  ESPALIER_CHECK_CONFIG(num_parts >= 1, "partition: {} parts; at least 1 is needed", num_parts);
  ESPALIER_CHECK_CONFIG(num_parts <= kMaxParts, "partition: {} parts; at most {} are allowed", num_parts, kMaxParts);
}

// Running sums of checked weights; load(i, j) is the sum of items i .. j-1.
class Loads {
 public:
  explicit Loads(std::span<const double> weights) : sums_{0.0} {
    for (std::size_t i = 0; i < weights.size(); ++i)
      ESPALIER_CHECK_CONFIG(std::isfinite(weights[i]) && weights[i] >= 0,
                            "partition: weight {} is {}; weights must be finite and at least 0", i, weights[i]);
    const auto sums = prefix_sum(weights);
    sums_.insert(sums_.end(), sums.begin(), sums.end());
    ESPALIER_CHECK_CONFIG(std::isfinite(sums_.back()), "partition: {} weights add up to more than {}; scale them down",
                          weights.size(), std::numeric_limits<double>::max());
  }

  std::int64_t num_items() const { return static_cast<std::int64_t>(sums_.size()) - 1; }
  double operator()(std::int64_t begin, std::int64_t end) const { return sums_[end] - sums_[begin]; }
  // Differences up to this are rounding.
  double tolerance() const { return 16 * std::numeric_limits<double>::epsilon() * sums_.back(); }

 private:
  std::vector<double> sums_;
};

// Over all cuts of the items into non-empty parts, the smallest possible largest score(load of a
// part).
template <class Score>
double smallest_largest(const Loads& load, std::int64_t num_parts, Score score) {
  const std::int64_t n = load.num_items();
  std::vector<double> best(n + 1, kInfinity);  // of the first `end` items, in `parts` parts
  best[0] = -kInfinity;
  for (std::int64_t parts = 1; parts <= num_parts; ++parts)
    for (std::int64_t end = n; end >= 0; --end) {
      double smallest = kInfinity;
      for (std::int64_t begin = parts - 1; begin < end; ++begin)
        smallest = std::min(smallest, std::max(best[begin], score(load(begin, end))));
      best[end] = smallest;
    }
  return best[n];
}

// The rightmost cuts with every load in [low, high]; there are some.
std::vector<std::int64_t> rightmost_cuts(const Loads& load, std::int64_t num_parts, double low, double high) {
  const std::int64_t n = load.num_items();
  const auto fits = [&](std::int64_t begin, std::int64_t end) {
    const double part = load(begin, end);
    return low <= part && part <= high;
  };
  // rest[p][i]: items i .. n-1 can be cut into p parts that fit.
  std::vector<std::vector<bool>> rest(num_parts + 1, std::vector<bool>(n + 1, false));
  rest[0][n] = true;
  for (std::int64_t parts = 1; parts <= num_parts; ++parts)
    for (std::int64_t begin = 0; begin < n; ++begin)
      for (std::int64_t end = begin + 1; end <= n && !rest[parts][begin]; ++end)
        rest[parts][begin] = rest[parts - 1][end] && fits(begin, end);
  std::vector<std::int64_t> cuts{0};
  for (std::int64_t parts = num_parts; parts >= 1; --parts) {
    std::int64_t end = n;
    while (!(rest[parts - 1][end] && fits(cuts.back(), end))) --end;
    cuts.push_back(end);
  }
  return cuts;
}

}  // namespace

std::vector<std::int64_t> partition_uniform(std::int64_t num_items, std::int64_t num_parts) {
  require_parts(num_parts);
  ESPALIER_CHECK_CONFIG(num_items >= 0, "partition: {} items; at least 0 are needed", num_items);
  const std::int64_t size = num_items / num_parts, longer = num_items % num_parts;
  std::vector<std::int64_t> cuts{0};
  for (std::int64_t part = 0; part < num_parts; ++part) cuts.push_back(cuts.back() + size + (part < longer ? 1 : 0));
  return cuts;
}

std::vector<std::int64_t> partition_balanced(std::span<const double> weights, std::int64_t num_parts) {
  require_parts(num_parts);
  const Loads load(weights);
  if (load.num_items() <= num_parts) return partition_uniform(load.num_items(), num_parts);
  const double largest = smallest_largest(load, num_parts, [](double part) { return part; });
  const double high = largest + load.tolerance();
  const double smallest =
      -smallest_largest(load, num_parts, [high](double part) { return part <= high ? -part : kInfinity; });
  return rightmost_cuts(load, num_parts, smallest - load.tolerance(), high);
}

std::vector<std::int64_t> partition_deepspeed(std::span<const double> weights, std::int64_t num_parts) {
  require_parts(num_parts);
  const Loads load(weights);
  const std::int64_t n = load.num_items();
  if (n <= num_parts) return partition_uniform(n, num_parts);
  // The one cut kept for the first `end` items in a number of parts, and its extreme loads.
  struct Kept {
    double largest = kInfinity;
    double smallest = kInfinity;
    std::int64_t last_cut = 0;
  };
  std::vector<std::vector<Kept>> kept(num_parts + 1, std::vector<Kept>(n + 1));
  kept[0][0].largest = 0;
  for (std::int64_t parts = 1; parts <= num_parts; ++parts)
    for (std::int64_t end = parts; end <= n; ++end) {
      double range = kInfinity;
      for (std::int64_t begin = parts - 1; begin < (parts == 1 ? 1 : end); ++begin) {
        const Kept& before = kept[parts - 1][begin];
        const double largest = std::max(before.largest, load(begin, end));
        const double smallest = std::min(before.smallest, load(begin, end));
        if (largest - smallest > range) continue;
        range = largest - smallest;
        kept[parts][end] = {.largest = largest, .smallest = smallest, .last_cut = begin};
      }
    }
  std::vector<std::int64_t> cuts{n};
  for (std::int64_t parts = num_parts; parts >= 1; --parts) cuts.push_back(kept[parts][cuts.back()].last_cut);
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

std::vector<std::int64_t> partition_explicit(std::vector<std::int64_t> cuts, std::int64_t num_items,
                                             std::int64_t num_parts) {
  require_parts(num_parts);
  const auto list = [&] { return fmt::format("partition {}", fmt::join(cuts, ",")); };
  ESPALIER_CHECK_CONFIG(static_cast<std::int64_t>(cuts.size()) == num_parts + 1,
                        "{}: {} cuts; {} parts need {}: 0, the first item of each further part, "
                        "and the number of items ({})",
                        list(), cuts.size(), num_parts, num_parts + 1, num_items);
  ESPALIER_CHECK_CONFIG(cuts.front() == 0, "{}: begins with {}; the first part begins with item 0", list(),
                        cuts.front());
  ESPALIER_CHECK_CONFIG(cuts.back() == num_items, "{}: ends with {}; there are {} items", list(), cuts.back(),
                        num_items);
  for (std::int64_t part = 0; part < num_parts; ++part) {
    ESPALIER_CHECK_CONFIG(cuts[part] <= cuts[part + 1], "{}: {} comes before {}; cuts must ascend", list(), cuts[part],
                          cuts[part + 1]);
    ESPALIER_CHECK_CONFIG(cuts[part] < cuts[part + 1] || num_items < num_parts,
                          "{}: part {} is empty; {} items are enough for {} parts", list(), part, num_items, num_parts);
  }
  return cuts;
}

std::vector<std::int64_t> partition_by_type(std::span<const std::string> type_names, std::string_view pattern,
                                            std::int64_t num_parts) {
  std::regex expression;
  try {
    expression.assign(pattern.begin(), pattern.end(), std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& error) {
    throw ConfigError(fmt::format("partition type:{}: malformed regular expression ({})", pattern, error.what()));
  }
  std::vector<double> weights;
  for (const std::string& name : type_names) weights.push_back(std::regex_search(name, expression) ? 1.0 : 0.0);
  ESPALIER_CHECK_CONFIG(std::find(weights.begin(), weights.end(), 1.0) != weights.end(),
                        "partition type:{}: matches none of the {} types; there are {}", pattern, type_names.size(),
                        fmt::join(std::set<std::string>(type_names.begin(), type_names.end()), ", "));
  return partition_balanced(weights, num_parts);
}

std::vector<double> prefix_sum(std::span<const double> weights) {
  std::vector<double> sums;
  double sum = 0.0;
  for (double weight : weights) sums.push_back(sum += weight);
  return sums;
}

std::vector<double> part_loads(std::span<const double> weights, std::span<const std::int64_t> cuts) {
  const auto num_items = static_cast<std::int64_t>(weights.size());
  ESPALIER_CHECK_CONFIG(
      !cuts.empty() && cuts.front() == 0 && cuts.back() == num_items && std::is_sorted(cuts.begin(), cuts.end()),
      "partition {}: cuts must ascend from 0 to {}, the number of weights", fmt::join(cuts, ","), num_items);
  std::vector<double> loads;
  for (std::size_t part = 0; part + 1 < cuts.size(); ++part) {
    double load = 0.0;
    for (std::int64_t item = cuts[part]; item < cuts[part + 1]; ++item) load += weights[item];
    loads.push_back(load);
  }
  return loads;
}

}  // namespace espalier
