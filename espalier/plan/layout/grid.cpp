// SPDX-License-Identifier: Apache-2.0
// Mixed-radix arithmetic. An axis' coordinate of a rank is (rank - offset) / stride % size; a fiber
// starts where all varying coordinates are 0; the index of a fiber in its family is the held
// coordinates read as digits.
#include "espalier/plan/layout/grid.hpp"

#include <algorithm>

#include "espalier/base/check.hpp"

namespace espalier {

Grid::Grid(std::span<const GridAxis> axes, std::int64_t offset)
    : axes_(axes.begin(), axes.end()), strides_(axes.size()), offset_(offset) {
  ESPALIER_CHECK_CONFIG(axes.size() <= kMaxAxes, "grid: {} axes; at most {} are possible", axes.size(), kMaxAxes);
  ESPALIER_CHECK_CONFIG(offset >= 0, "grid: the offset {} is negative; expected a rank", offset);
  for (std::size_t i = axes_.size(); i-- > 0;) {
    const GridAxis& axis = axes_[i];
    ESPALIER_CHECK_CONFIG(!axis.name.empty(), "grid: axis {} has no name", i);
    ESPALIER_CHECK_CONFIG(axis.size >= 1, "grid: axis '{}' has size {}; expected at least 1", axis.name, axis.size);
    const auto same = std::count_if(axes_.begin(), axes_.end(), [&](const GridAxis& a) { return a.name == axis.name; });
    ESPALIER_CHECK_CONFIG(same == 1, "grid: the axis name '{}' is used {} times; expected different names", axis.name,
                          same);
    strides_[i] = size_;
    std::int64_t end = 0;
    ESPALIER_CHECK_CONFIG(
        !__builtin_mul_overflow(size_, axis.size, &size_) && !__builtin_add_overflow(offset_, size_, &end),
        "grid: {} from rank {} has more ranks than 64 bits count", to_string(), offset);
  }
}

bool Grid::has(std::string_view axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const GridAxis& a) { return a.name == axis; });
}

std::size_t Grid::index(std::string_view axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return i;
  }
  throw ConfigError(fmt::format("grid: there is no axis '{}'; expected one of {}", axis, to_string()));
}

AxisMask Grid::mask(std::span<const std::string_view> axes) const {
  AxisMask mask = 0;
  for (std::string_view axis : axes) {
    const AxisMask bit = AxisMask{1} << index(axis);
    ESPALIER_CHECK_CONFIG((mask & bit) == 0, "grid: axis '{}' is named twice; expected different axes", axis);
    mask |= bit;
  }
  return mask;
}

void Grid::check_rank(std::int64_t rank) const {
  ESPALIER_CHECK_CONFIG(contains(rank), "grid: rank {} is not in {}; expected {} to {}", rank, to_string(), offset_,
                        offset_ + size_ - 1);
}

std::int64_t Grid::rank(std::span<const std::int64_t> coordinates) const {
  ESPALIER_CHECK_CONFIG(coordinates.size() == axes_.size(),
                        "grid: {} coordinates for the {} axes of {}; expected one each", coordinates.size(),
                        axes_.size(), to_string());
  std::int64_t rank = offset_;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    ESPALIER_CHECK_CONFIG(coordinates[i] >= 0 && coordinates[i] < axes_[i].size,
                          "grid: coordinate {} on axis '{}' of {}; expected 0 to {}", coordinates[i], axes_[i].name,
                          to_string(), axes_[i].size - 1);
    rank += coordinates[i] * strides_[i];
  }
  return rank;
}

std::vector<std::int64_t> Grid::coordinates(std::int64_t rank) const {
  check_rank(rank);
  std::vector<std::int64_t> coordinates(axes_.size());
  for (std::size_t i = 0; i < axes_.size(); ++i) coordinates[i] = (rank - offset_) / strides_[i] % axes_[i].size;
  return coordinates;
}

std::int64_t Grid::coordinate(std::string_view axis, std::int64_t rank) const {
  check_rank(rank);
  const std::size_t i = index(axis);
  return (rank - offset_) / strides_[i] % axes_[i].size;
}

RankSet Grid::fiber(std::int64_t rank, AxisMask varying) const {
  check_rank(rank);
  RankSet set;
  set.offset_ = rank;
  for (std::size_t i = axes_.size(); i-- > 0;) {
    if ((varying >> i & 1) == 0) continue;
    set.offset_ -= (rank - offset_) / strides_[i] % axes_[i].size * strides_[i];
    set.push_slower(axes_[i].size, strides_[i], {});
  }
  return set;
}

RankSet Grid::fiber(std::int64_t rank, std::span<const Varying> varying) const {
  check_rank(rank);
  std::array<const Varying*, kMaxAxes> chosen{};
  std::int64_t start = rank;
  for (const Varying& v : varying) {
    const std::size_t i = index(v.axis);
    ESPALIER_CHECK_CONFIG(chosen[i] == nullptr, "grid: axis '{}' is named twice; expected different axes", v.axis);
    chosen[i] = &v;
    start -= (rank - offset_) / strides_[i] % axes_[i].size * strides_[i];
  }
  std::vector<RankSet::Axis> axes;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (chosen[i] != nullptr) axes.push_back({axes_[i].size, strides_[i], chosen[i]->coordinates});
  }
  return RankSet(start, axes);
}

Family Grid::family(std::span<const Varying> varying, std::span<const std::string_view> held) const {
  AxisMask varying_mask = 0;
  for (const Varying& v : varying) varying_mask |= mask({v.axis});
  std::vector<std::size_t> order;
  if (held.empty()) {
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      if ((varying_mask >> i & 1) == 0) order.push_back(i);
    }
  } else {
    const AxisMask all = (AxisMask{1} << axes_.size()) - 1;
    ESPALIER_CHECK_CONFIG(mask(held) == (all & ~varying_mask),
                          "grid: the held axes {} do not complete the varying ones to all of {}; "
                          "name every axis once",
                          fmt::join(held, ","), to_string());
    for (std::string_view axis : held) order.push_back(index(axis));
  }
  return Family(*this, varying, std::move(order));
}

Grid Grid::split(std::string_view axis, std::span<const GridAxis> parts) const {
  const std::size_t at = index(axis);
  std::vector<GridAxis> axes(axes_.begin(), axes_.begin() + at);
  axes.insert(axes.end(), parts.begin(), parts.end());
  axes.insert(axes.end(), axes_.begin() + at + 1, axes_.end());
  const Grid inner(parts);
  ESPALIER_CHECK_CONFIG(inner.size() == axes_[at].size,
                        "grid: {} makes {}, but axis '{}' has size {}; expected sizes that multiply to it",
                        inner.to_string(), inner.size(), axis, axes_[at].size);
  return Grid(axes, offset_);
}

std::string Grid::to_string() const {
  std::string text;
  for (const GridAxis& axis : axes_) text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.size);
  return text;
}

Family::Family(Grid grid, std::span<const Varying> varying, std::vector<std::size_t> held)
    : grid_(std::move(grid)), first_(grid_.fiber(grid_.offset(), varying)), held_(std::move(held)) {
  for (std::size_t axis : held_) size_ *= grid_.axes_[axis].size;
}

Family::Family(const RankSet& only) : grid_({{"rank", only.last() - only.first() + 1}}, only.first()), first_(only) {}

std::string Family::to_string() const {
  std::string by;
  for (std::size_t axis : held_) by += (by.empty() ? " by " : ",") + grid_.axes_[axis].name;
  return fmt::format("{} of {}{}", first_.to_string(), grid_.to_string(), by);
}

RankSet Family::set(std::int64_t index) const {
  ESPALIER_CHECK_CONFIG(index >= 0 && index < size_,
                        "grid: there is no rank set {} in a family of {}; expected 0 to {}", index, size_, size_ - 1);
  std::int64_t distance = 0;
  for (std::size_t i = held_.size(); i-- > 0;) {
    const std::size_t axis = held_[i];
    distance += index % grid_.axes_[axis].size * grid_.strides_[axis];
    index /= grid_.axes_[axis].size;
  }
  return first_.shifted(distance);
}

std::optional<std::int64_t> Family::index_of(std::int64_t rank) const {
  if (!grid_.contains(rank)) return std::nullopt;
  std::int64_t index = 0;
  std::int64_t distance = 0;
  for (std::size_t axis : held_) {
    const std::int64_t c = (rank - grid_.offset_) / grid_.strides_[axis] % grid_.axes_[axis].size;
    index = index * grid_.axes_[axis].size + c;
    distance += c * grid_.strides_[axis];
  }
  return first_.contains(rank - distance) ? std::optional(index) : std::nullopt;
}

}  // namespace espalier
