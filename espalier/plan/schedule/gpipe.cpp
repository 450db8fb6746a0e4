// SPDX-License-Identifier: Apache-2.0
// All forwards, then all backwards, on a common clock of 2 (M + S - 1) steps: micro-batch m is
// forwarded on stage s at step s + m and backwarded at step (M + S - 1) + (S - 1 - s) + m. What a
// stage makes it sends in the same step. Huang et al., "GPipe: Efficient Training of Giant Neural
// Networks using Pipeline Parallelism", 2019.
#include "espalier/plan/schedule/generator.hpp"
#include "espalier/plan/schedule/schedules.hpp"

namespace espalier {
namespace {

StageProgram write_gpipe(const StagePlace& at) {
  StageProgram program;
  program.num_buffers = at.num_micro_batches;
  const std::int64_t half = at.num_micro_batches + at.num_stages - 1;
  program.steps.resize(static_cast<std::size_t>(2 * half));
  for (std::int64_t m = 0; m < at.num_micro_batches; ++m) {
    auto& forward = program.steps[at.stage + m];
    const auto slot = [&](Op op) { return in_slot(op, m, program.num_buffers); };
    if (!at.is_first()) forward.push_back(slot(Op::recv_activation));
    if (at.is_first() || at.is_last()) forward.push_back(slot(Op::load));
    forward.push_back(slot(Op::forward));
    if (!at.is_last()) forward.push_back(slot(Op::send_activation));

    auto& backward = program.steps[half + at.num_stages - 1 - at.stage + m];
    if (!at.is_last()) backward.push_back(slot(Op::recv_grad));
    backward.push_back(slot(Op::backward));
    if (!at.is_first()) backward.push_back(slot(Op::send_grad));
  }
  auto& last = program.steps.back();
  last.insert(last.end(), {{Op::reduce_tied_grads}, {Op::reduce_grads}, {Op::optimizer_step}});
  return program;
}

}  // namespace

ScheduleKind gpipe() { return make_kind("gpipe", write_gpipe); }

}  // namespace espalier
