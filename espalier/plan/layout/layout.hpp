// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/layout/rank_set.hpp"

namespace espalier {

inline constexpr std::int64_t kRest = -1;  // "whatever is left of the world": one axis at most

// What a program asks for. Axes slowest first in the default order; `expert` cuts the data x context (x tensor)
// ranks of a stage, it does not multiply the world. expert_tensor 0 means "as tensor".
struct LayoutSpec {
  std::int64_t pipe = 1;
  std::int64_t data = 1;
  std::int64_t context = 1;
  std::int64_t tensor = 1;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 0;
};

// The axes of the dense grid, slowest first. deepspeed and megatron name the same sets in their own order.
enum class AxisOrder { pipe_data_context_tensor, pipe_context_data_tensor /* ... decided by the implementer */ };

// A checked LayoutSpec for a world: immutable, a cheap value. Answers everything about ranks, coordinates and groups
// without communication, in O(axes).
class Layout {
 public:
  // ConfigError, with the arithmetic and the legal values, unless the sizes multiply to the world.
  Layout(const LayoutSpec& spec, std::int64_t world_size);

  // "data=4,pipe=2,tensor=rest"; ConfigError for unknown or repeated axes and for sizes below 1.
  static LayoutSpec parse(std::string_view text);

  std::int64_t world_size() const;
  std::int64_t size(std::string_view axis) const;
  std::int64_t coordinate(std::string_view axis, std::int64_t rank) const;

  // Families in the order in which groups are created, e.g. "data", "pipe", "tensor", "model", "context", ...
  std::span<const std::string_view> families() const;
  // The group of `family` that `rank` belongs to.
  RankSet group(std::string_view family, std::int64_t rank) const;
  // One line per fact, as agreed on between ranks: "pipe=2", "data=4", ...
  std::vector<std::string> describe() const;
};

}  // namespace espalier
