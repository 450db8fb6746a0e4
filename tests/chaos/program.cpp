// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/program.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "espalier/comm/names.hpp"
#include "espalier/plan/seed.hpp"

namespace espalier::chaos {
namespace {

const std::vector<at::ScalarType> kFloats{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};
const std::vector<at::ScalarType> kIntegers{at::kLong, at::kInt, at::kShort, at::kChar, at::kByte};

bool reduces(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter; }

bool has_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::gather || kind == Kind::scatter;
}

// No member has several parts.
bool is_whole(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::broadcast || !is_collective(kind);
}

bool has_uneven_parts(Kind kind) { return kind == Kind::all_gather_v || kind == Kind::all_to_all_v; }

// The operation as messages name it.
Kind name_of(Kind kind) { return kind == Kind::all_to_all_v ? Kind::all_to_all : kind; }

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::reduce:
      return "reduce";
    case Kind::broadcast:
      return "broadcast";
    case Kind::all_gather:
      return "all_gather";
    case Kind::all_gather_v:
      return "all_gather_v";
    case Kind::gather:
      return "gather";
    case Kind::scatter:
      return "scatter";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::all_to_all_v:
      return "all_to_all with splits";
    case Kind::barrier:
      return "barrier";
    case Kind::send:
      return "send";
    case Kind::recv:
      return "recv";
    case Kind::save:
      return "save";
  }
  return "?";
}

std::vector<Members> make_groups(Random& random, const ProgramOptions& options) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(options.num_ranks));
  std::iota(all.begin(), all.end(), 0);
  std::vector<Members> groups{{all, ""}};
  std::set<std::vector<std::int64_t>> taken{all};
  while (static_cast<std::int64_t>(groups.size()) < options.num_groups) {
    std::vector<std::int64_t> ranks;
    const double share = 0.2 + 0.2 * static_cast<double>(random.below(5));
    for (const std::int64_t rank : all) {
      if (random.chance(share)) ranks.push_back(rank);
    }
    if (ranks.empty()) continue;
    const bool is_new = taken.insert(ranks).second;
    groups.push_back({std::move(ranks), is_new ? "" : fmt::format("group {} of its own", groups.size())});
  }
  return groups;
}

ReduceOp pick_reduction(Random& random, at::ScalarType dtype) {
  static const std::vector<ReduceOp> floating{ReduceOp::sum,     ReduceOp::sum, ReduceOp::mean,
                                              ReduceOp::product, ReduceOp::min, ReduceOp::max};
  static const std::vector<ReduceOp> integral{ReduceOp::sum,     ReduceOp::product, ReduceOp::min,    ReduceOp::max,
                                              ReduceOp::bit_and, ReduceOp::bit_or,  ReduceOp::bit_xor};
  return random.pick(at::isFloatingType(dtype) ? floating : integral);
}

at::ScalarType pick_dtype(Random& random) {
  if (random.chance(0.1)) return at::kBool;
  return random.pick(random.chance(0.6) ? kFloats : kIntegers);
}

std::int64_t pick_count(Random& random, std::int64_t most_bytes, at::ScalarType dtype) {
  const std::int64_t most = std::max<std::int64_t>(1, most_bytes / static_cast<std::int64_t>(c10::elementSize(dtype)));
  if (random.chance(0.05)) return 0;
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(most)));
  const std::int64_t power = std::int64_t{1} << random.below(bits);
  return random.chance(0.2) ? power : power + random.below(power);
}

// The half of a message that has not been begun.
struct Owed {
  Step step;
  std::size_t other;  // number of the half that has
};

using Channel = std::tuple<std::size_t, std::int64_t, std::int64_t, std::int64_t>;  // group, sender, receiver, tag

Channel channel_of(const Step& step) { return {step.group, step.root, step.receiver, step.tag}; }

}  // namespace

std::uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15;
  std::uint64_t word = state_;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

Program make_program(std::uint64_t seed, const ProgramOptions& options) {
  Random random(derive_seed(seed, "chaos program"));
  Program program{
      .seed = seed, .num_ranks = options.num_ranks, .groups = make_groups(random, options), .steps = {}, .rests = {}};
  std::vector<Owed> owed;  // oldest first
  const auto pay = [&](std::size_t which) {
    // Messages of a channel are matched in the order sent: the oldest of them comes first.
    const Channel channel = channel_of(owed[which].step);
    const auto first = std::ranges::find_if(owed, [&](const Owed& one) { return channel_of(one.step) == channel; });
    program.steps[first->other].settled_by = program.steps.size();
    first->step.settled_by = program.steps.size();
    program.steps.push_back(first->step);
    owed.erase(first);
  };
  const auto rest = [&] {
    while (!owed.empty()) pay(0);
    program.rests.push_back(program.steps.size());
  };
  while (static_cast<std::int64_t>(program.steps.size()) < options.num_steps) {
    const std::int64_t since =
        static_cast<std::int64_t>(program.steps.size() - (program.rests.empty() ? 0 : program.rests.back()));
    if (options.rest_every > 0 && since >= options.rest_every) rest();
    if (owed.size() > 6 || (!owed.empty() && random.chance(0.2))) {
      pay(static_cast<std::size_t>(random.below(static_cast<std::int64_t>(owed.size()))));
      continue;
    }
    Step step;
    step.group = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(program.groups.size())));
    const auto size = static_cast<std::int64_t>(program.groups[step.group].ranks.size());
    step.kind = static_cast<Kind>(random.below(static_cast<int>(Kind::save)));
    step.dtype = pick_dtype(random);
    step.reduce = pick_reduction(random, step.dtype);
    step.count = pick_count(random, is_whole(step.kind) ? options.most_bytes : options.most_bytes / size, step.dtype);
    step.root = random.below(size);
    step.values = random.next();
    step.strided = random.chance(0.1);
    step.settled_by = program.steps.size();
    if (is_collective(step.kind)) {
      program.steps.push_back(step);
      continue;
    }
    if (size == 1) continue;
    step.receiver = (step.root + 1 + random.below(size - 1)) % size;
    step.tag = random.below(3);
    // The same half comes first on a channel where one is owed, or they would be matched otherwise.
    const auto waiting =
        std::ranges::find_if(owed, [&](const Owed& one) { return channel_of(one.step) == channel_of(step); });
    if (waiting != owed.end()) step.kind = waiting->step.kind == Kind::recv ? Kind::send : Kind::recv;
    Step other = step;
    other.kind = step.kind == Kind::send ? Kind::recv : Kind::send;
    other.strided = random.chance(0.1);
    owed.push_back({other, program.steps.size()});
    program.steps.push_back(step);
  }
  rest();
  return program;
}

bool takes_part(const Program& program, const Step& step, std::int64_t rank) {
  const std::vector<std::int64_t>& ranks = program.groups[step.group].ranks;
  if (step.kind == Kind::send) return ranks[static_cast<std::size_t>(step.root)] == rank;
  if (step.kind == Kind::recv) return ranks[static_cast<std::size_t>(step.receiver)] == rank;
  return std::ranges::binary_search(ranks, rank);
}

bool is_collective(Kind kind) { return kind != Kind::send && kind != Kind::recv && kind != Kind::save; }

bool same_call(const Step& a, const Step& b) {
  if (name_of(a.kind) != name_of(b.kind)) return false;
  if (a.kind == Kind::barrier) return true;
  if (a.dtype != b.dtype) return false;
  if (reduces(a.kind) && a.reduce != b.reduce) return false;
  if (has_root(a.kind) && a.root != b.root) return false;
  return name_of(a.kind) == Kind::all_to_all || has_uneven_parts(a.kind) || a.count == b.count;
}

std::string describe(const Program& program, const Step& step) {
  const std::vector<std::int64_t>& ranks = program.groups[step.group].ranks;
  std::string what = step.kind == Kind::barrier || step.kind == Kind::save
                         ? ""
                         : fmt::format("{} x {}{}", detail::dtype_name(step.dtype),
                                       has_uneven_parts(step.kind) ? "at most " : "", step.count);
  if (reduces(step.kind)) what = fmt::format("{}, {}", detail::to_string(step.reduce), what);
  if (has_root(step.kind)) what += fmt::format(", root {}", step.root);
  if (step.kind == Kind::send || step.kind == Kind::recv) {
    what += fmt::format(", {} to {}, tag {}", ranks[static_cast<std::size_t>(step.root)],
                        ranks[static_cast<std::size_t>(step.receiver)], step.tag);
  }
  return fmt::format("{}({}){} of group {} [{}]", to_string(step.kind), what, step.strided ? ", strided," : "",
                     step.group, fmt::join(ranks, ","));
}

}  // namespace espalier::chaos
