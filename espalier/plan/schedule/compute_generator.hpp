// SPDX-License-Identifier: Apache-2.0
// Private to the generators of compute schedules.
#pragma once

#include <cstdint>
#include <string>

#include "espalier/plan/schedule/compute_schedule.hpp"

namespace espalier {

// Without steps; ConfigError unless all numbers are at least 1 and their product is not too large.
ComputeSchedule empty_schedule(std::string name, const ChunkPlaces& places, std::int64_t num_micro_batches);

inline ComputeStep compute_step(Pass pass, std::int64_t micro_batch, std::int64_t chunk) {
  return {pass, static_cast<std::int32_t>(micro_batch), static_cast<std::int32_t>(chunk)};
}

}  // namespace espalier
