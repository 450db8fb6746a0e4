// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "espalier/plan/schedule/instruction.hpp"

namespace espalier {

// All forwards, then all backwards in ascending order. Keeps every micro-batch alive. (Huang et al.
// 2019)
ScheduleKind gpipe();

// One forward, one backward: warm-up of stages - stage - 1 forwards, then pairs, then drain. The
// listing is DeepSpeed's TrainSchedule, step by step. Works with fewer micro-batches than stages.
ScheduleKind one_f_one_b();

// Forward only, two buffers: DeepSpeed's InferenceSchedule.
ScheduleKind forward_only();

// One stage, one buffer: load, forward, backward per micro-batch (DeepSpeed's
// DataParallelSchedule). ConfigError when asked for more than one stage.
ScheduleKind data_parallel_only();

// By name: "gpipe", "1f1b", "forward-only", "data-parallel". ConfigError with the legal names
// otherwise.
ScheduleKind schedule_by_name(std::string_view name);
std::vector<std::string_view> schedule_names();

}  // namespace espalier
