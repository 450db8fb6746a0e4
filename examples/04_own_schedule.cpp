// SPDX-License-Identifier: Apache-2.0
// A pipeline schedule of one's own: checked before it runs, timed without running it. Needs no LibTorch.
#include <cstdio>

#include "espalier/plan/schedule/check.hpp"
#include "espalier/plan/schedule/schedules.hpp"
#include "espalier/plan/schedule/simulate.hpp"

namespace esp = espalier;

// Each micro-batch goes forward and straight back before the next one starts: right, but slow.
esp::Schedule one_at_a_time(std::int64_t num_stages, std::int64_t num_micro_batches) {
  using esp::Op;
  esp::Schedule schedule{"one at a time", num_micro_batches, {}};
  for (std::int64_t stage = 0; stage < num_stages; ++stage) {
    const bool first = stage == 0, last = stage == num_stages - 1;
    esp::StageProgram program{.num_buffers = 1, .steps = {}};
    for (std::int32_t m = 0; m < num_micro_batches; ++m) {
      std::vector<esp::Instruction> step;
      if (first || last) step.push_back({Op::load, 0, m});
      if (!first) step.push_back({Op::recv_activation, 0, m});
      step.push_back({Op::forward, 0, m});
      if (!last) step.push_back({Op::send_activation, 0, m});
      if (!last) step.push_back({Op::recv_grad, 0, m});
      step.push_back({Op::backward, 0, m});
      if (!first) step.push_back({Op::send_grad, 0, m});
      program.steps.push_back(step);
    }
    program.steps.push_back({{Op::reduce_tied_grads}, {Op::reduce_grads}, {Op::optimizer_step}});
    schedule.stages.push_back(program);
  }
  return schedule;
}

int main() {
  const esp::ScheduleCosts costs{.forward = 1.0, .backward = 2.0};
  const esp::Schedule own = one_at_a_time(4, 8);
  const esp::ScheduleReport report = esp::check(own);
  for (const std::string& error : report.errors) std::printf("%s\n", error.c_str());
  if (!report.ok()) return 1;
  const esp::Schedule known = esp::one_f_one_b().generate(4, 8);
  std::printf("4 stages, 8 micro-batches: %s takes %g, %s takes %g, without idling it would be %g\n", own.name.c_str(),
              esp::simulate(own, costs).span, known.name.c_str(), esp::simulate(known, costs).span,
              esp::simulate(own, costs).ideal);

  esp::Schedule broken = own;
  broken.stages[2].steps[3].pop_back();  // stage 2 forgets to send a gradient
  std::printf("and with one instruction left out: %s\n", esp::check(broken).errors.at(0).c_str());
}
