// SPDX-License-Identifier: Apache-2.0
// The vocabulary of DeepSpeed's runtime.pipe.topology over a Grid. Nothing is stored per rank.
#include "espalier/plan/groups/topology.hpp"

#include <algorithm>
#include <array>

#include "espalier/base/check.hpp"
#include "espalier/plan/layout/divisors.hpp"

namespace espalier {
namespace {

bool is_identifier(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && !is_digit(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c); });
}

Grid make_grid(std::span<const std::string> axes, std::span<const std::int64_t> sizes) {
  ESPALIER_CHECK_CONFIG(axes.size() == sizes.size(), "topology: {} axes and {} sizes; expected one size for each axis",
                        axes.size(), sizes.size());
  std::vector<GridAxis> grid_axes;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    ESPALIER_CHECK_CONFIG(is_identifier(axes[i]),
                          "topology: '{}' cannot be the name of an axis; expected letters, digits "
                          "and _, not starting with a digit",
                          axes[i]);
    grid_axes.push_back({axes[i], sizes[i]});
  }
  return Grid(grid_axes);
}

}  // namespace

ProcessTopology::ProcessTopology(std::span<const std::string> axes, std::span<const std::int64_t> sizes)
    : grid_(make_grid(axes, sizes)) {}

ProcessTopology ProcessTopology::pipe_data(std::int64_t pipe, std::int64_t data) {
  return ProcessTopology(std::array<std::string, 2>{"pipe", "data"}, std::array{pipe, data});
}

ProcessTopology ProcessTopology::pipe_data_model(std::int64_t pipe, std::int64_t data, std::int64_t model) {
  return ProcessTopology(std::array<std::string, 3>{"pipe", "data", "model"}, std::array{pipe, data, model});
}

ProcessTopology ProcessTopology::pipe_data_of(std::int64_t world_size) {
  std::array<std::int64_t, 2> sizes{1, 1};
  std::size_t turn = 0;
  for (std::int64_t factor : prime_factors(world_size)) sizes[turn++ % 2] *= factor;
  return pipe_data(sizes[0], sizes[1]);
}

std::int64_t ProcessTopology::size(std::string_view axis) const { return grid_.has(axis) ? grid_.size(axis) : 0; }

std::int64_t ProcessTopology::rank(std::span<const AxisCoordinate> coordinates) const {
  std::vector<std::int64_t> all(grid_.axes().size(), -1);
  for (const AxisCoordinate& c : coordinates) {
    std::int64_t& here = all[grid_.index(c.axis)];
    ESPALIER_CHECK_CONFIG(here == -1, "topology: axis '{}' is given twice; expected each axis once", c.axis);
    ESPALIER_CHECK_CONFIG(c.coordinate >= 0 && c.coordinate < grid_.size(c.axis),
                          "topology: coordinate {} on axis '{}' of {}; expected 0 to {}", c.coordinate, c.axis,
                          grid_.to_string(), grid_.size(c.axis) - 1);
    here = c.coordinate;
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    ESPALIER_CHECK_CONFIG(all[i] != -1,
                          "topology: axis '{}' is missing; a rank needs a coordinate on every axis of {}, "
                          "filter() takes some of them",
                          grid_.axes()[i].name, grid_.to_string());
  }
  return grid_.rank(all);
}

std::vector<RankSet> ProcessTopology::comm_lists(std::string_view axis) const {
  std::vector<RankSet> sets;
  if (!grid_.has(axis)) return sets;
  const Family family = grid_.family({axis});
  for (std::int64_t i = 0; i < family.size(); ++i) sets.push_back(family.set(i));
  return sets;
}

std::optional<RankSet> ProcessTopology::filter(std::span<const AxisCoordinate> conditions) const {
  std::vector<std::int64_t> start(grid_.axes().size());
  AxisMask held = 0;
  bool occurs = true;
  for (const AxisCoordinate& c : conditions) {
    const std::size_t i = grid_.index(c.axis);
    if (c.coordinate < 0 || c.coordinate >= grid_.axes()[i].size || (held >> i & 1 && start[i] != c.coordinate)) {
      occurs = false;
      continue;
    }
    start[i] = c.coordinate;
    held |= AxisMask{1} << i;
  }
  if (!occurs) return std::nullopt;
  const AxisMask all = (AxisMask{1} << grid_.axes().size()) - 1;
  return grid_.fiber(grid_.rank(start), all & ~held);
}

std::string ProcessTopology::rank_repr(std::int64_t rank, const RankReprOptions& options) const {
  const std::vector<std::int64_t> at = coordinates(rank);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const std::string& name = grid_.axes()[i].name;
    const bool omitted = std::find(options.omit_axes.begin(), options.omit_axes.end(), name) != options.omit_axes.end();
    if (!omitted) parts.push_back(fmt::format("{}{}{:02}", name, options.inner, at[i]));
  }
  return fmt::format("{}", fmt::join(parts, options.outer));
}

std::vector<std::int64_t> prime_factors(std::int64_t n) {
  check_positive("prime factors", "the number", n);
  std::vector<std::int64_t> factors;
  for (std::int64_t p = 2; p <= n / p; ++p) {
    for (; n % p == 0; n /= p) factors.push_back(p);
  }
  if (n > 1) factors.push_back(n);
  return factors;
}

}  // namespace espalier
