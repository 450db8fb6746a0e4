// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <span>
#include <string>
#include <string_view>

#include "espalier/plan/groups/group_plan.hpp"
#include "espalier/plan/layout/layout.hpp"

namespace espalier {

// A plan that can be asked for by its name, as `espalier layout --plan NAME key=value...` does.
struct NamedPlan {
  std::string_view name;      // that of its builder without "_plan"
  std::string_view settings;  // what it takes, with the defaults: "model=1"
};

std::span<const NamedPlan> named_plans();

// The plan `name` for ranks 0 .. world_size-1. `settings` are of the form "key=value"; lists are
// joined by ','. Axes (where settings says so) are given slowest first: "pipe=2", "data=4".
// ConfigError, with the legal ones, for unknown names, keys and values, and as the builder says.
GroupPlan plan_by_name(std::string_view name, std::int64_t world_size, std::span<const std::string> settings);

// All families of a layout, in the order in which they are created.
GroupPlan layout_plan(const Layout& layout);

}  // namespace espalier
