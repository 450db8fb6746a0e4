// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/schedules.hpp"

#include "espalier/base/check.hpp"

namespace espalier {

ScheduleKind schedule_by_name(std::string_view name) {
  for (ScheduleKind kind : {gpipe(), one_f_one_b(), forward_only(), data_parallel_only()})
    if (kind.name == name) return kind;
  throw ConfigError(fmt::format("schedule: '{}' is unknown; there are {}", name, fmt::join(schedule_names(), ", ")));
}

std::vector<std::string_view> schedule_names() { return {"gpipe", "1f1b", "forward-only", "data-parallel"}; }

}  // namespace espalier
