// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace espalier {

// An ascending set of ranks: what is left of a grid when some axes vary and the rest are held.
//
//   member = offset + sum over varying axes of coordinate * stride
//
// An axis varies over all coordinates 0 .. size-1 or over an explicit ascending list. Memory is O(axes + listed
// coordinates) whatever the world's size; no query but to_vector() enumerates. A cheap value.
class RankSet {
 public:
  static constexpr int kMaxAxes = 8;

  // The ranks offset + coordinate * stride of one axis; `coordinates` empty means all of 0 .. size-1.
  struct Axis {
    std::int64_t size = 1;    // number of coordinates that vary
    std::int64_t stride = 1;  // ranks between neighbouring coordinates
    std::vector<std::int64_t> coordinates = {};
  };

  RankSet() = default;  // {0}
  // Axes slowest first; each stride must be at least size * stride of the next one. ConfigError otherwise.
  RankSet(std::int64_t offset, std::span<const Axis> axes);

  static RankSet single(std::int64_t rank);
  static RankSet range(std::int64_t first, std::int64_t size);
  // Any ascending list without repetitions. ConfigError otherwise.
  static RankSet of(std::span<const std::int64_t> ranks);

  std::int64_t size() const;
  std::int64_t member(std::int64_t index) const;                      // 0 <= index < size
  std::optional<std::int64_t> index_of(std::int64_t rank) const;      // nullopt: not a member
  bool contains(std::int64_t rank) const { return index_of(rank).has_value(); }
  std::vector<std::int64_t> to_vector() const;                        // O(size)
  std::string to_string() const;                                      // "[0,2,4,6]", long ones shortened

  // Same members, however they were described.
  friend bool operator==(const RankSet& a, const RankSet& b);

 private:
  // (representation is the implementer's choice: inline arrays, so that making one costs no allocation)
};

}  // namespace espalier
