// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/mesh.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/world_state.hpp"
#include "espalier/plan/groups/named_plans.hpp"

namespace espalier {

struct Mesh::State {
  World world;
  Layout layout;
  std::vector<std::pair<std::string_view, Group>> groups;  // in plan order
};

namespace {

// What the ranks were asked for, before it is checked: a wrong request must meet every rank alike.
std::vector<std::string> entries_of(const LayoutSpec& spec) {
  const auto entry = [](std::string_view axis, std::int64_t size) {
    return size == kRest ? fmt::format("{}=rest", axis) : fmt::format("{}={}", axis, size);
  };
  return {entry("pipe", spec.pipe),           entry("data", spec.data),     entry("context", spec.context),
          entry("tensor", spec.tensor),       entry("expert", spec.expert), entry("expert_tensor", spec.expert_tensor),
          fmt::format("order={}", spec.order)};
}

}  // namespace

Mesh::Mesh(const World& world, const LayoutSpec& spec) {
  agree(world.group(), "layout", entries_of(spec));
  State state{world, Layout(spec, world.size()), {}};
  for (const std::string_view family : state.layout.families()) {
    state.groups.emplace_back(family, world.make_group(state.layout.group(family, world.rank()), family));
  }
  detail::warn_of_host_crossings(world, layout_plan(state.layout));
  state_ = std::make_shared<const State>(std::move(state));
}

const World& Mesh::world() const { return state_->world; }
const Layout& Mesh::layout() const { return state_->layout; }
std::int64_t Mesh::size(std::string_view axis) const { return layout().size(axis); }
std::int64_t Mesh::coordinate(std::string_view axis) const { return layout().coordinate(axis, world().rank()); }

const Group& Mesh::group(std::string_view family) const {
  const auto found = std::find_if(state_->groups.begin(), state_->groups.end(),
                                  [&](const auto& entry) { return entry.first == family; });
  if (found == state_->groups.end()) {
    throw ConfigError(fmt::format("mesh: there is no family of groups '{}'; there are {}", family,
                                  fmt::join(layout().families(), ", ")));
  }
  return found->second;
}

}  // namespace espalier
