// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/compute_generator.hpp"

#include <utility>

#include "espalier/base/check.hpp"

namespace espalier {

ComputeSchedule empty_schedule(std::string name, const ChunkPlaces& places, std::int64_t num_micro_batches) {
  constexpr std::int64_t kMaxSteps = 10'000'000;
  ESPALIER_CHECK_CONFIG(places.num_ranks >= 1 && places.num_chunks >= 1 && num_micro_batches >= 1,
                        "schedule {}: {} ranks, {} chunks and {} micro-batches; a schedule needs at least 1 of each",
                        name, places.num_ranks, places.num_chunks, num_micro_batches);
  std::int64_t steps = places.num_ranks;
  ESPALIER_CHECK_CONFIG(!__builtin_mul_overflow(steps, places.num_chunks, &steps) &&
                            !__builtin_mul_overflow(steps, num_micro_batches, &steps) && steps <= kMaxSteps,
                        "schedule {}: {} ranks x {} chunks x {} micro-batches; their product may be at most {}", name,
                        places.num_ranks, places.num_chunks, num_micro_batches, kMaxSteps);
  ComputeSchedule schedule{
      .name = std::move(name), .num_micro_batches = num_micro_batches, .places = places, .ranks = {}};
  schedule.ranks.resize(static_cast<std::size_t>(places.num_ranks));
  return schedule;
}

}  // namespace espalier
