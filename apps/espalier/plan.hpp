// SPDX-License-Identifier: Apache-2.0
// What `espalier layout` says about a group plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "espalier/plan/groups/group_plan.hpp"

namespace espalier::command {

// Every group's name and ranks in order of creation, or those of one rank.
void print_plan(const GroupPlan& plan, std::optional<std::int64_t> rank, bool json);

// How many communicators each rank opens besides the world's; for one rank, which.
void print_communicators(const GroupPlan& plan, std::optional<std::int64_t> rank, bool json);

// The named plans and what they take, for --help.
std::string named_plans_help();

}  // namespace espalier::command
