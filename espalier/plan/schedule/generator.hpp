// SPDX-License-Identifier: Apache-2.0
// Private to the generators: the frame of a schedule, filled stage by stage.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "espalier/plan/schedule/instruction.hpp"

namespace espalier {

// Where a stage stands while its program is written.
struct StagePlace {
  std::int64_t stage;
  std::int64_t num_stages;
  std::int64_t num_micro_batches;

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == num_stages - 1; }
  bool has(std::int64_t micro_batch) const { return micro_batch >= 0 && micro_batch < num_micro_batches; }
};

// A kind that writes every stage's program with `write`, after checking both counts (ConfigError).
ScheduleKind make_kind(std::string name, std::function<StageProgram(const StagePlace&)> write);

// An instruction of one micro-batch, in the slot micro_batch % num_buffers.
Instruction in_slot(Op op, std::int64_t micro_batch, std::int64_t num_buffers);

}  // namespace espalier
