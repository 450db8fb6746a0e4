// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/layout/rank_set.hpp"

namespace espalier {

struct GridAxis {
  std::string name;
  std::int64_t size = 1;

  bool operator==(const GridAxis&) const = default;
};

// A place on one axis.
struct AxisCoordinate {
  std::string axis;
  std::int64_t coordinate = 0;
};

// An axis that varies, over all its coordinates or over an ascending list of them.
struct Varying {
  Varying(const char* axis) : axis(axis) {}
  Varying(std::string_view axis, std::vector<std::int64_t> coordinates = {})
      : axis(axis), coordinates(std::move(coordinates)) {}

  std::string_view axis;
  std::vector<std::int64_t> coordinates;
};

// Some axes of a grid: bit i stands for the i-th.
using AxisMask = std::uint32_t;

class Family;

// Named axes with sizes, slowest first: rank = offset + sum of coordinate * stride, where an axis'
// stride is the product of the sizes after it. Every name that is unknown gives a ConfigError that
// lists those there are.
class Grid {
 public:
  static constexpr std::size_t kMaxAxes = RankSet::kMaxAxes;

  Grid() = default;  // no axes: one rank, 0
  // ConfigError for sizes below 1, empty or repeated names, more than kMaxAxes axes, ranks beyond
  // 64 bits.
  explicit Grid(std::span<const GridAxis> axes, std::int64_t offset = 0);
  Grid(std::initializer_list<GridAxis> axes, std::int64_t offset = 0)
      : Grid(std::span(axes.begin(), axes.size()), offset) {}

  std::span<const GridAxis> axes() const { return axes_; }
  std::int64_t offset() const { return offset_; }
  std::int64_t size() const { return size_; }  // number of ranks
  RankSet ranks() const { return RankSet::range(offset_, size_); }
  bool contains(std::int64_t rank) const { return rank >= offset_ && rank - offset_ < size_; }

  bool has(std::string_view axis) const;
  std::size_t index(std::string_view axis) const;
  std::int64_t size(std::string_view axis) const { return axes_[index(axis)].size; }
  std::int64_t stride(std::string_view axis) const { return strides_[index(axis)]; }
  AxisMask mask(std::span<const std::string_view> axes) const;
  AxisMask mask(std::initializer_list<std::string_view> axes) const {
    return mask(std::span(axes.begin(), axes.size()));
  }

  // One coordinate per axis, in the order of the axes. ConfigError for a wrong count or a
  // coordinate out of range.
  std::int64_t rank(std::span<const std::int64_t> coordinates) const;
  std::vector<std::int64_t> coordinates(std::int64_t rank) const;
  std::int64_t coordinate(std::string_view axis, std::int64_t rank) const;

  // The ranks that share `rank`'s coordinates on every other axis. O(axes), no allocation.
  RankSet fiber(std::int64_t rank, AxisMask varying) const;
  RankSet fiber(std::int64_t rank, std::initializer_list<std::string_view> varying) const {
    return fiber(rank, mask(varying));
  }
  // The same with lists; `rank`'s own coordinates on the varying axes do not matter.
  RankSet fiber(std::int64_t rank, std::span<const Varying> varying) const;

  // Every fiber over the same varying axes. `held`, if not empty, names all other axes, slowest
  // first; it decides the order of the fibers. By default they are in declared order.
  Family family(std::span<const Varying> varying, std::span<const std::string_view> held = {}) const;
  Family family(std::initializer_list<Varying> varying, std::initializer_list<std::string_view> held = {}) const;

  // The same ranks with one axis cut in several, slowest first; their sizes must multiply to its
  // size.
  Grid split(std::string_view axis, std::span<const GridAxis> parts) const;
  Grid split(std::string_view axis, std::initializer_list<GridAxis> parts) const {
    return split(axis, std::span(parts.begin(), parts.size()));
  }

  std::string to_string() const;  // "pipe=2,data=4"

 private:
  friend class Family;
  void check_rank(std::int64_t rank) const;

  std::vector<GridAxis> axes_;
  std::vector<std::int64_t> strides_;
  std::int64_t offset_ = 0;
  std::int64_t size_ = 1;
};

// All fibers of a grid over the same varying axes, none of them stored. Without lists they
// partition the grid.
class Family {
 public:
  std::int64_t size() const { return size_; }                     // number of rank sets
  RankSet set(std::int64_t index) const;                          // ConfigError unless 0 <= index < size
  std::optional<std::int64_t> index_of(std::int64_t rank) const;  // of the set that holds rank; nullopt: in none
  const Grid& grid() const { return grid_; }
  // What distinguishes it: "[0,1] of pipe=2,data=2 by pipe": its first set, its grid, the held
  // axes.
  std::string to_string() const;

  // The family of one set only. Its grid has the one axis "rank" that spans the set.
  explicit Family(const RankSet& only);

 private:
  friend class Grid;
  Family(Grid grid, std::span<const Varying> varying, std::vector<std::size_t> held);

  Grid grid_;
  RankSet first_;                  // the set through rank offset
  std::vector<std::size_t> held_;  // slowest first
  std::int64_t size_ = 1;
};

inline Family Grid::family(std::initializer_list<Varying> varying, std::initializer_list<std::string_view> held) const {
  return family(std::span(varying.begin(), varying.size()), std::span(held.begin(), held.size()));
}

}  // namespace espalier
