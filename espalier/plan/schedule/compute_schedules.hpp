// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "espalier/plan/schedule/compute_schedule.hpp"

namespace espalier {

struct InterleavedOptions {
  std::int64_t num_chunks = 2;  // a rank's
  // Micro-batches that go through one chunk before the next chunk's turn. 0: the fewest that are legal.
  std::int64_t group_size = 0;
};

// 1F1B over several chunks a rank, which cuts the bubble by their number and sends as many times more messages. (Narayanan
// et al. 2021) ConfigError with the legal values: more than one chunk needs more than one rank; a group has at least as
// many micro-batches as there are ranks, and so has what is left for the last one.
ComputeSchedule interleaved_1f1b(std::int64_t num_ranks, std::int64_t num_micro_batches,
                                 const InterleavedOptions& options = {});

// All micro-batches through a chunk before the next one's turn, then all backwards likewise: chunks in turn as interleaved,
// memory as GPipe. (Lamy-Poirier 2023)
ComputeSchedule breadth_first(std::int64_t num_ranks, std::int64_t num_micro_batches, std::int64_t num_chunks = 2);

// 1F1B with its backward in halves: weights' gradients fill the bubbles. Keeps as many activations as 1F1B's first stage on
// every rank (zb_1p), or twice as many but one (zb_2p), which leaves no bubble in a long run. (Qi et al. 2024, ZB-H1, ZB-H2)
ComputeSchedule zb_1p(std::int64_t num_ranks, std::int64_t num_micro_batches);
ComputeSchedule zb_2p(std::int64_t num_ranks, std::int64_t num_micro_batches);

// Two chunks a rank in V shape, forwards of one way paired with backwards of the other. (DeepSeek 2025, DualPipeV)
// ConfigError with fewer micro-batches than twice the ranks.
ComputeSchedule dualpipe_v(std::int64_t num_ranks, std::int64_t num_micro_batches);

struct ComputeScheduleSize {
  std::int64_t num_ranks = 1;
  std::int64_t num_micro_batches = 1;
  std::int64_t num_chunks = 2;  // a rank's, of the schedules that leave it open
  std::int64_t group_size = 0;  // of interleaved
};

// By name: "interleaved", "breadth-first", "zb-1p", "zb-2p", "dualpipev". ConfigError with the legal names otherwise.
ComputeSchedule compute_schedule_by_name(std::string_view name, const ComputeScheduleSize& size);
std::span<const std::string_view> compute_schedule_names();

}  // namespace espalier
