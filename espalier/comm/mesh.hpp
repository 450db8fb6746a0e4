// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "espalier/comm/group.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/plan/layout/layout.hpp"

namespace espalier {

// A world seen through a layout: this rank's coordinates and its group of every family. Construction is collective over
// the world: all ranks agree on the layout (ConfigError naming the first difference and the ranks, before any group
// exists), then each connects its own groups in plan order; rank 0 warns of needless crossings of hosts. A cheap
// handle.
class Mesh {
 public:
  Mesh(const World& world, const LayoutSpec& spec);

  const World& world() const;
  const Layout& layout() const;

  std::int64_t size(std::string_view axis) const;        // ConfigError lists the axes when unknown
  std::int64_t coordinate(std::string_view axis) const;  // of this rank

  // My group of a family ("data", "tensor", "pipe", "model", ...). An unknown name lists those there are.
  const Group& group(std::string_view family) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace espalier
