// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace espalier {

// An ascending set of ranks: what is left of a grid when some axes vary and the rest are held.
//
//   member = offset + sum over varying axes of coordinate * stride
//
// An axis varies over all coordinates 0 .. size-1 or over an explicit ascending list. Memory is
// O(axes + listed coordinates) whatever the world's size, and without lists there is no allocation.
// A cheap value. No query enumerates but to_vector(), and operator== where lists are compared with
// something of another form.
class RankSet {
 public:
  static constexpr int kMaxAxes = 8;

  // The ranks offset + coordinate * stride of one axis; `coordinates` empty means all of 0 ..
  // size-1.
  struct Axis {
    std::int64_t size = 1;                       // the axis has the coordinates 0 .. size-1
    std::int64_t stride = 1;                     // ranks between neighbouring coordinates
    std::vector<std::int64_t> coordinates = {};  // those that vary, ascending
  };

  RankSet() { axes_[0] = {}; }  // {0}
  // Axes slowest first; each stride must be larger than the distance that the later axes span
  // together, so that members ascend. ConfigError otherwise, and for negative ranks, sizes below 1,
  // more than kMaxAxes axes, lists out of order.
  RankSet(std::int64_t offset, std::span<const Axis> axes);

  static RankSet single(std::int64_t rank);
  static RankSet range(std::int64_t first, std::int64_t size);
  // Any ascending list without repetitions, not empty. ConfigError otherwise.
  static RankSet of(std::span<const std::int64_t> ranks);

  std::int64_t size() const { return size_; }
  std::int64_t first() const { return offset_; }
  std::int64_t last() const { return offset_ + reach_; }
  std::int64_t member(std::int64_t index) const;                  // ConfigError unless 0 <= index < size
  std::optional<std::int64_t> index_of(std::int64_t rank) const;  // nullopt: not a member
  bool contains(std::int64_t rank) const { return index_of(rank).has_value(); }
  RankSet shifted(std::int64_t distance) const;  // every member + distance; ConfigError where ranks would be negative
  // The members at the given indices; O(axes) if this set is evenly spaced, else O(indices).
  // ConfigError if there are fewer.
  RankSet pick(const RankSet& indices) const;
  std::vector<std::int64_t> to_vector() const;  // O(size)
  // "[0,2,4,6]"; beyond 16 members the first, the last and the form: "[0,2,..,510] (256 ranks,
  // 0+256x2)".
  std::string to_string() const;

  // Same members, however they were described. O(axes), except between lists of different form:
  // O(size).
  friend bool operator==(const RankSet& a, const RankSet& b);

 private:
  friend class Grid;

  // Kept in normal form: no extent of size 1, none that continues the next one, list entries
  // counted from the first.
  struct Extent {
    std::int64_t size = 1;  // number of members along this axis
    std::int64_t stride = 1;
    std::int64_t list = -1;  // where its coordinates start in *lists_; -1: 0 .. size-1

    bool operator==(const Extent&) const = default;
  };

  std::int64_t coordinate(const Extent& extent, std::int64_t index) const;
  // Adds a slower extent in front of those added before it (they are kept fastest first).
  void push_slower(std::int64_t size, std::int64_t stride, std::span<const std::int64_t> coordinates);

  std::int64_t offset_ = 0;
  std::int64_t size_ = 1;
  std::int64_t reach_ = 0;  // last member - first member
  int num_axes_ = 0;
  std::array<Extent, kMaxAxes> axes_;  // fastest first
  std::shared_ptr<const std::vector<std::int64_t>> lists_;
};

}  // namespace espalier
