// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/plan/groups/group_plan.hpp"

namespace espalier {

// Which groups cross hosts that could stay inside: those with members on several hosts although all
// ranks from the first member to the last would fit on one. One line for each family with such
// groups, in plan order; families alike in this share a line. `host_of_rank` gives each rank's host a number;
// ConfigError if a rank of the plan has none. O(sum of the groups' sizes).
std::vector<std::string> host_crossings(const GroupPlan& plan, std::span<const std::int64_t> host_of_rank);

}  // namespace espalier
