// SPDX-License-Identifier: Apache-2.0
// A rank has one clock. A step begins when the rank is free and what it needs has arrived: at once from a chunk of its own,
// after the transfer from another rank.
#include "espalier/plan/schedule/compute_simulation.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "espalier/base/check.hpp"
#include "espalier/plan/schedule/compute_play.hpp"

namespace espalier {

ComputeSimulation simulate(const ComputeSchedule& schedule, const ComputeCosts& costs) {
  const std::array times{costs.forward, costs.backward, costs.backward_input, costs.backward_weight};  // by Pass
  for (const double time : {times[0], times[1], times[2], times[3], costs.transfer}) {
    ESPALIER_CHECK_CONFIG(std::isfinite(time) && time >= 0, "simulate: a time of {}; it must be finite and at least 0",
                          time);
  }
  const ComputeReport report = check(schedule);
  ESPALIER_CHECK_CONFIG(report.ok(), "simulate: schedule {} is not sound ({} errors): {}", schedule.name,
                        report.errors.size(), report.errors.front());

  const ChunkPlaces& places = schedule.places;
  ComputeSimulation simulation;
  simulation.ranks.resize(schedule.ranks.size());
  play(schedule, [&](std::int64_t rank, const ComputeStep& step, const double* needed) {
    auto& intervals = simulation.ranks[static_cast<std::size_t>(rank)];
    double begin = intervals.empty() ? 0.0 : intervals.back().end;
    if (needed != nullptr) {
      const std::int64_t stage = places.stage(rank, step.chunk);
      const bool other = places.rank_of(*needed_stage(step.pass, stage, places.num_stages())) != rank;
      begin = std::max(begin, *needed + (other ? costs.transfer : 0.0));
    }
    intervals.push_back({step, begin, begin + times[static_cast<std::size_t>(step.pass)]});
    return intervals.back().end;
  });
  for (const auto& intervals : simulation.ranks) {
    double work = 0.0;
    for (const ComputeInterval& interval : intervals) work += interval.end - interval.begin;
    simulation.bubbles.push_back(intervals.back().end - intervals.front().begin - work);
    simulation.span = std::max(simulation.span, intervals.back().end);
    simulation.ideal = std::max(simulation.ideal, work);
  }
  return simulation;
}

}  // namespace espalier
