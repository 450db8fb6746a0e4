// SPDX-License-Identifier: Apache-2.0
// Every named plan, used: what all ranks of a world run, and what throws when something is wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"

namespace espalier::testing_support {

struct AskedPlan {
  std::string name;
  std::vector<std::string> settings;
};

// Each named plan at least once, for worlds of 4 and of 8 ranks.
std::vector<AskedPlan> asked_plans(std::int64_t world_size);

// Makes every plan live, and compares with it what its groups reduce, what they broadcast from
// their own source, and what goes around in a ring of each.
void use_every_plan(World& world);

}  // namespace espalier::testing_support
