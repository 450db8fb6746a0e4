// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/plan/schedule/instruction.hpp"

namespace espalier {

struct ScheduleReport {
  std::vector<std::string> errors;  // empty: the schedule is sound
  // Per stage of a sound schedule: most micro-batches at a time that are forwarded and not yet
  // backwarded (in a schedule without backward: not yet sent on).
  std::vector<std::int64_t> peak_live_micro_batches;

  bool ok() const { return errors.empty(); }
};

// Proves a schedule complete (every micro-batch loaded in order where needed, forwarded once per
// stage, backwarded once, each send matched by a receive in the same order on that link, buffers
// not overwritten while live, reductions and the optimizer step last and in order) and free of
// deadlock when every send waits for its receive (rendezvous). It follows that both ends of a link
// take up its messages, of both directions together, in the same order, as broadcasts in a group of
// the two need it. Cost O(instructions). Never throws on a bad schedule: it says in `errors` which stage, step and
// instruction is at fault; a deadlock is told as the cycle of stages that wait for each other, and only looked for
// where all else is sound. A schedule without any backward is held to forward rules.
ScheduleReport check(const Schedule& schedule);

}  // namespace espalier
