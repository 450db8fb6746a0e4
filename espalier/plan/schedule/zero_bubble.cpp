// SPDX-License-Identifier: Apache-2.0
// 1F1B with the backward in halves: k (P - r - 1) forwards ahead, then a forward and the input's half of a backward in turn.
// The weights' half of a micro-batch comes k r micro-batches later, so that later ranks, which start later, fill with weights'
// halves the time at the end in which earlier ones still wait for gradients. A rank keeps k (P - 1) + 1 activations. k = 1 is
// 1F1B's memory with a third of its bubble where F = I = W; k = 2 leaves none. (Qi et al. 2024)
#include <algorithm>
#include <utility>

#include "espalier/plan/schedule/compute_generator.hpp"
#include "espalier/plan/schedule/compute_schedules.hpp"

namespace espalier {
namespace {

ComputeSchedule zero_bubble(std::string name, std::int64_t k, std::int64_t num_ranks, std::int64_t num_micro_batches) {
  ComputeSchedule schedule = empty_schedule(std::move(name), {.num_ranks = num_ranks}, num_micro_batches);
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    auto& steps = schedule.ranks[static_cast<std::size_t>(rank)];
    const std::int64_t ahead = k * (num_ranks - rank - 1);
    const std::int64_t behind = k * rank;
    const auto add = [&](Pass pass, std::int64_t micro_batch) {
      if (micro_batch >= 0 && micro_batch < num_micro_batches) steps.push_back(compute_step(pass, micro_batch, 0));
    };
    // Turn t backwards micro-batch t: the turns before 0 only forward, those after the last only make weights' halves.
    for (std::int64_t turn = -ahead; turn < num_micro_batches + behind; ++turn) {
      add(Pass::forward, turn + ahead);
      add(Pass::backward_input, turn);
      add(Pass::backward_weight, turn - behind);
    }
  }
  return schedule;
}

}  // namespace

ComputeSchedule zb_1p(std::int64_t num_ranks, std::int64_t num_micro_batches) {
  return zero_bubble("zb-1p", 1, num_ranks, num_micro_batches);
}

ComputeSchedule zb_2p(std::int64_t num_ranks, std::int64_t num_micro_batches) {
  return zero_bubble("zb-2p", 2, num_ranks, num_micro_batches);
}

}  // namespace espalier
