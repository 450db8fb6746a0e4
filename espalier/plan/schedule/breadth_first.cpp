// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/compute_generator.hpp"
#include "espalier/plan/schedule/compute_schedules.hpp"

namespace espalier {

ComputeSchedule breadth_first(std::int64_t num_ranks, std::int64_t num_micro_batches, std::int64_t num_chunks) {
  ComputeSchedule schedule =
      empty_schedule("breadth-first", {.num_ranks = num_ranks, .num_chunks = num_chunks}, num_micro_batches);
  for (auto& steps : schedule.ranks) {
    for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk)
      for (std::int64_t m = 0; m < num_micro_batches; ++m) steps.push_back(compute_step(Pass::forward, m, chunk));
    for (std::int64_t chunk = num_chunks; chunk-- > 0;)
      for (std::int64_t m = 0; m < num_micro_batches; ++m) steps.push_back(compute_step(Pass::backward, m, chunk));
  }
  return schedule;
}

}  // namespace espalier
