// SPDX-License-Identifier: Apache-2.0
// A stage has one clock. Forwards and backwards move it on; a receive moves it to the arrival of
// its message, which is the sender's clock at the send plus the transfer. A stage is played until
// it needs a message not yet sent.
#include "espalier/plan/schedule/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <deque>

#include "espalier/base/check.hpp"
#include "espalier/plan/schedule/check.hpp"
#include "espalier/plan/schedule/listing.hpp"

namespace espalier {
namespace {

void require_time(double value, const char* name) {
  ESPALIER_CHECK_CONFIG(std::isfinite(value) && value >= 0, "simulate: {} time {}; it must be finite and at least 0",
                        name, value);
}

}  // namespace

Simulation simulate(const Schedule& schedule, const ScheduleCosts& costs) {
  require_time(costs.forward, "forward");
  require_time(costs.backward, "backward");
  require_time(costs.transfer, "transfer");
  const ScheduleReport report = check(schedule);
  ESPALIER_CHECK_CONFIG(report.ok(), "simulate: schedule {} is not sound ({} errors): {}", schedule.name,
                        report.errors.size(), report.errors.front());

  const std::int64_t num_stages = schedule.num_stages();
  Simulation simulation;
  simulation.stages.resize(num_stages);
  std::vector<std::vector<Placed>> lines;
  for (const StageProgram& program : schedule.stages) lines.push_back(in_one_line(program));
  std::vector<std::size_t> next(num_stages, 0);
  std::vector<double> clock(num_stages, 0.0), work(num_stages, 0.0);
  std::vector<std::deque<double>> activations(num_stages),
      grads(num_stages);  // arrivals, by receiving stage

  std::vector<std::int64_t> ready;
  for (std::int64_t s = num_stages; s-- > 0;) ready.push_back(s);
  while (!ready.empty()) {
    const std::int64_t s = ready.back();
    ready.pop_back();
    for (; next[s] < lines[s].size(); ++next[s]) {
      const Instruction& i = lines[s][next[s]].instruction;
      if (i.op == Op::forward || i.op == Op::backward) {
        const double time = i.op == Op::forward ? costs.forward : costs.backward;
        simulation.stages[s].push_back({.instruction = i, .begin = clock[s], .end = clock[s] + time});
        clock[s] += time;
        work[s] += time;
      } else if (i.op == Op::send_activation || i.op == Op::send_grad) {
        const std::int64_t to = s + link(i.op).neighbour;
        (i.op == Op::send_activation ? activations : grads)[to].push_back(clock[s] + costs.transfer);
        ready.push_back(to);
      } else if (i.op == Op::recv_activation || i.op == Op::recv_grad) {
        auto& arrivals = (i.op == Op::recv_activation ? activations : grads)[s];
        if (arrivals.empty()) break;
        clock[s] = std::max(clock[s], arrivals.front());
        arrivals.pop_front();
      }
    }
  }
  // The first stage starts at 0: it receives nothing before its first forward.
  for (std::int64_t s = 0; s < num_stages; ++s) {
    simulation.span = std::max(simulation.span, simulation.stages[s].back().end);
    simulation.ideal = std::max(simulation.ideal, work[s]);
  }
  return simulation;
}

}  // namespace espalier
