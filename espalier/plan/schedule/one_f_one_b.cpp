// SPDX-License-Identifier: Apache-2.0
// One forward, one backward, on a common clock of 2 (M + S - 1) steps. Micro-batch m is forwarded
// on stage s at step s + 2 m and backwarded at step 2 S - s - 1 + 2 m: forwards and backwards of a
// stage fall on steps of different parity and never collide. A result is sent one step after it was
// made. A forward step sends before it receives and a backward step receives before it sends, so
// both ends of a link meet in the same order. The listing is that of DeepSpeed's TrainSchedule.
#include <algorithm>

#include "espalier/plan/schedule/generator.hpp"
#include "espalier/plan/schedule/schedules.hpp"

namespace espalier {
namespace {

// Micro-batch whose forward (or backward) falls on `step`, if this is such a step; it may lie
// outside 0 .. M-1.
std::int64_t forward_at(const StagePlace& at, std::int64_t step) { return (step - at.stage) / 2; }
std::int64_t backward_at(const StagePlace& at, std::int64_t step) { return (step + at.stage + 1) / 2 - at.num_stages; }

StageProgram write_one_f_one_b(const StagePlace& at) {
  StageProgram program;
  program.num_buffers = std::max<std::int64_t>(2, std::min(at.num_stages - at.stage, at.num_micro_batches));
  const std::int64_t num_steps = 2 * (at.num_micro_batches + at.num_stages - 1);
  for (std::int64_t step = 0; step < num_steps; ++step) {
    std::vector<Instruction> list;
    const auto add = [&](Op op, std::int64_t micro_batch) {
      if (at.has(micro_batch)) list.push_back(in_slot(op, micro_batch, program.num_buffers));
    };
    const bool is_forward = (step - at.stage) % 2 == 0;
    if (is_forward) {
      const std::int64_t current = step < at.stage ? -1 : forward_at(at, step);
      if (!at.is_first()) add(Op::send_grad, backward_at(at, step - 1));
      if (!at.is_first()) add(Op::recv_activation, current);
      if (at.is_first() || at.is_last()) add(Op::load, current);
      add(Op::forward, current);
    } else {
      const std::int64_t current = backward_at(at, step);
      if (!at.is_last()) add(Op::recv_grad, current);
      if (!at.is_last()) add(Op::send_activation, step - 1 < at.stage ? -1 : forward_at(at, step - 1));
      add(Op::backward, current);
    }
    program.steps.push_back(std::move(list));
  }
  auto& last = program.steps.back();
  last.insert(last.end(), {{Op::reduce_tied_grads}, {Op::reduce_grads}, {Op::optimizer_step}});
  return program;
}

}  // namespace

ScheduleKind one_f_one_b() { return make_kind("1f1b", write_one_f_one_b); }

}  // namespace espalier
