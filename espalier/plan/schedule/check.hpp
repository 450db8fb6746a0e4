// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/plan/schedule/instruction.hpp"

namespace espalier {

struct ScheduleReport {
  std::vector<std::string> errors;                 // empty: the schedule is sound
  std::vector<std::int64_t> peak_live_micro_batches;  // per stage: forward done, backward not yet

  bool ok() const { return errors.empty(); }
};

// Proves a schedule complete (every micro-batch loaded where needed, forwarded once per stage, backwarded once, each
// send matched by a receive in the same order on that link, buffers not overwritten while live) and free of deadlock
// when every send waits for its receive (rendezvous). Cost O(instructions). Never throws on a bad schedule: it says
// in `errors` which stage, step and instruction is at fault. A schedule without any backward is held to forward rules.
ScheduleReport check(const Schedule& schedule);

}  // namespace espalier
