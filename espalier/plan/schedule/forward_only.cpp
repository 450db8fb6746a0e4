// SPDX-License-Identifier: Apache-2.0
// Forward only, on a common clock of M + S - 1 steps: micro-batch m is forwarded on stage s at step
// s + m and sent one step later. Even stages send before they receive, odd ones receive first, so
// both ends of a link meet. The listing is that of DeepSpeed's InferenceSchedule.
#include "espalier/plan/schedule/generator.hpp"
#include "espalier/plan/schedule/schedules.hpp"

namespace espalier {
namespace {

StageProgram write_forward_only(const StagePlace& at) {
  StageProgram program;
  program.num_buffers = 2;
  for (std::int64_t step = 0; step < at.num_micro_batches + at.num_stages - 1; ++step) {
    std::vector<Instruction> list;
    const auto add = [&](Op op, std::int64_t micro_batch) {
      if (at.has(micro_batch)) list.push_back(in_slot(op, micro_batch, program.num_buffers));
    };
    const std::int64_t current = step - at.stage;
    const bool sends_first = at.stage % 2 == 0;
    if (at.is_first() || at.is_last()) add(Op::load, current);
    if (sends_first && !at.is_last()) add(Op::send_activation, current - 1);
    if (!at.is_first()) add(Op::recv_activation, current);
    if (!sends_first && !at.is_last()) add(Op::send_activation, current - 1);
    add(Op::forward, current);
    program.steps.push_back(std::move(list));
  }
  return program;
}

}  // namespace

ScheduleKind forward_only() { return make_kind("forward-only", write_forward_only); }

}  // namespace espalier
