// SPDX-License-Identifier: Apache-2.0
// Private: plays a compute schedule, rank by rank, as far as each rank's next step has what it needs from another.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "espalier/plan/schedule/compute_schedule.hpp"

namespace espalier {

// The stage whose result of the same micro-batch a step of `stage` waits for, if any: the one before for a forward, the one
// after for a backward; the weights' half has all it needs on its own rank.
inline std::optional<std::int64_t> needed_stage(Pass pass, std::int64_t stage, std::int64_t num_stages) {
  if (pass == Pass::forward && stage > 0) return stage - 1;
  if ((pass == Pass::backward || pass == Pass::backward_input) && stage + 1 < num_stages) return stage + 1;
  return std::nullopt;
}

// When what others wait for was done: outputs of forwards and gradients of inputs, by micro-batch and stage.
class Results {
 public:
  Results(std::int64_t num_micro_batches, std::int64_t num_stages)
      : num_stages_(num_stages), times_(static_cast<std::size_t>(2 * num_micro_batches * num_stages), kNever) {}

  // Of a forward, or else of a backward, whole or the input's half; infinite while it is not done.
  double& time(bool forward, std::int64_t micro_batch, std::int64_t stage) {
    return times_[static_cast<std::size_t>((2 * micro_batch + (forward ? 0 : 1)) * num_stages_ + stage)];
  }
  static bool there(double time) { return time < kNever; }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  std::int64_t num_stages_;
  std::vector<double> times_;
};

// Calls take(rank, step, needed) for every step that can be taken, in an order in which each has what it needs: `needed` is
// the time of the result from another stage, null where none is needed. It returns the step's end. Returns how many steps
// each rank has taken: all of them, unless ranks wait for each other. The steps' numbers must be legal.
template <class Take>
std::vector<std::size_t> play(const ComputeSchedule& schedule, const Take& take) {
  const ChunkPlaces& places = schedule.places;
  const std::int64_t num_stages = places.num_stages();
  Results results(schedule.num_micro_batches, num_stages);
  std::vector<std::size_t> next(schedule.ranks.size(), 0);
  std::vector<std::int64_t> ready;
  for (std::int64_t rank = places.num_ranks; rank-- > 0;) ready.push_back(rank);
  while (!ready.empty()) {
    const std::int64_t rank = ready.back();
    ready.pop_back();
    const auto& steps = schedule.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t& at = next[static_cast<std::size_t>(rank)]; at < steps.size(); ++at) {
      const ComputeStep& step = steps[at];
      const bool forward = step.pass == Pass::forward;
      const std::int64_t stage = places.stage(rank, step.chunk);
      const auto from = needed_stage(step.pass, stage, num_stages);
      const double* const needed = from ? &results.time(forward, step.micro_batch, *from) : nullptr;
      if (needed != nullptr && !Results::there(*needed)) break;
      const double end = take(rank, step, needed);
      if (step.pass == Pass::backward_weight) continue;
      results.time(forward, step.micro_batch, stage) = end;
      const std::int64_t to = forward ? stage + 1 : stage - 1;
      if (to >= 0 && to < num_stages && places.rank_of(to) != rank) ready.push_back(places.rank_of(to));
    }
  }
  return next;
}

}  // namespace espalier
