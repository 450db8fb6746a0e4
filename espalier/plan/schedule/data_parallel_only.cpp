// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation without a pipeline: one step a micro-batch, one buffer.
// The listing is that of DeepSpeed's DataParallelSchedule.
#include "espalier/base/check.hpp"
#include "espalier/plan/schedule/generator.hpp"
#include "espalier/plan/schedule/schedules.hpp"

namespace espalier {
namespace {

StageProgram write_data_parallel_only(const StagePlace& at) {
  ESPALIER_CHECK_CONFIG(at.num_stages == 1,
                        "schedule data-parallel: {} stages, but it has no sends and serves 1 stage "
                        "only; take 1f1b or gpipe",
                        at.num_stages);
  StageProgram program;
  program.num_buffers = 1;
  for (std::int64_t m = 0; m < at.num_micro_batches; ++m)
    program.steps.push_back({in_slot(Op::load, m, 1), in_slot(Op::forward, m, 1), in_slot(Op::backward, m, 1)});
  auto& last = program.steps.back();
  last.insert(last.end(), {{Op::reduce_grads}, {Op::optimizer_step}});
  return program;
}

}  // namespace

ScheduleKind data_parallel_only() { return make_kind("data-parallel", write_data_parallel_only); }

}  // namespace espalier
