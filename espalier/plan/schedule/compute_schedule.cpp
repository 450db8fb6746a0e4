// SPDX-License-Identifier: Apache-2.0
// Three proofs, each resting on the ones before: the numbers are legal; each rank by itself passes each micro-batch over each
// of its chunks once, in order; played together, all ranks reach their end.
#include "espalier/plan/schedule/compute_schedule.hpp"

#include <algorithm>
#include <array>

#include "espalier/base/check.hpp"
#include "espalier/plan/schedule/compute_play.hpp"

namespace espalier {
namespace {

constexpr std::size_t kNumPasses = static_cast<std::size_t>(Pass::backward_weight) + 1;

std::size_t pass_index(Pass pass) { return static_cast<std::size_t>(pass); }

class ComputeChecker {
 public:
  explicit ComputeChecker(const ComputeSchedule& schedule) : schedule_(schedule), places_(schedule.places) {}

  ComputeReport run() {
    if (well_formed()) {
      for (std::int64_t rank = 0; rank < places_.num_ranks; ++rank) check_rank(rank);
      if (report_.ok()) check_ends();
    }
    if (!report_.ok()) report_.peak_live.clear();
    return std::move(report_);
  }

 private:
  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) {
    report_.errors.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  bool well_formed() {
    if (places_.num_ranks < 1 || places_.num_chunks < 1 || schedule_.num_micro_batches < 1) {
      error("schedule: {} ranks, {} chunks and {} micro-batches; it needs at least 1 of each", places_.num_ranks,
            places_.num_chunks, schedule_.num_micro_batches);
      return false;
    }
    if (std::ssize(schedule_.ranks) != places_.num_ranks) {
      error("schedule: steps for {} ranks; expected {}", schedule_.ranks.size(), places_.num_ranks);
      return false;
    }
    for (std::int64_t rank = 0; rank < places_.num_ranks; ++rank) {
      for (const ComputeStep& step : steps(rank)) {
        const bool legal = pass_index(step.pass) < kNumPasses && step.micro_batch >= 0 &&
                           step.micro_batch < schedule_.num_micro_batches && step.chunk >= 0 &&
                           step.chunk < places_.num_chunks;
        if (!legal) {
          error("rank {}: there is no step {}; there are {} micro-batches and {} chunks", rank, to_string(step),
                schedule_.num_micro_batches, places_.num_chunks);
        }
      }
    }
    return report_.ok();
  }

  // Each micro-batch and chunk: F, then B, or I and then W.
  void check_rank(std::int64_t rank) {
    std::vector<std::array<bool, kNumPasses>> done(
        static_cast<std::size_t>(schedule_.num_micro_batches * places_.num_chunks));
    std::int64_t live = 0, peak = 0;
    for (const ComputeStep& step : steps(rank)) {
      auto& passes = done[static_cast<std::size_t>(step.micro_batch * places_.num_chunks + step.chunk)];
      const auto has = [&](Pass pass) { return passes[pass_index(pass)]; };
      const bool first_half = step.pass == Pass::backward || step.pass == Pass::backward_input;
      if (has(step.pass) || (first_half && (has(Pass::backward) || has(Pass::backward_input)))) {
        error("rank {}: {} is there twice", rank, to_string(step));
      } else if (first_half && !has(Pass::forward)) {
        error("rank {}: {} comes before its forward", rank, to_string(step));
      } else if (step.pass == Pass::backward_weight && !has(Pass::backward_input)) {
        error("rank {}: {} comes before the input's half", rank, to_string(step));
      }
      passes[pass_index(step.pass)] = true;
      if (step.pass == Pass::forward) peak = std::max(peak, ++live);
      if (step.pass == Pass::backward || step.pass == Pass::backward_weight) --live;
    }
    for (std::size_t i = 0; i < done.size(); ++i) {
      const auto name = [&](Pass pass) {
        const auto at = static_cast<std::int64_t>(i);
        return to_string({pass, static_cast<std::int32_t>(at / places_.num_chunks),
                          static_cast<std::int32_t>(at % places_.num_chunks)});
      };
      const auto has = [&](Pass pass) { return done[i][pass_index(pass)]; };
      if (!has(Pass::forward)) error("rank {}: {} is missing", rank, name(Pass::forward));
      if (!has(Pass::backward) && !has(Pass::backward_input))
        error("rank {}: {} is missing", rank, name(Pass::backward));
      if (has(Pass::backward_input) && !has(Pass::backward_weight))
        error("rank {}: {} is missing", rank, name(Pass::backward_weight));
    }
    report_.peak_live.push_back(peak);
  }

  // Follows who waits for whom from the first rank that cannot go on.
  void check_ends() {
    const auto taken = play(schedule_, [](std::int64_t, const ComputeStep&, const double*) { return 0.0; });
    const auto stuck = [&](std::int64_t rank) { return taken[static_cast<std::size_t>(rank)] < steps(rank).size(); };
    std::int64_t rank = 0;
    while (rank < places_.num_ranks && !stuck(rank)) ++rank;
    if (rank == places_.num_ranks) return;
    std::string text;
    std::vector<bool> seen(static_cast<std::size_t>(places_.num_ranks), false);
    while (!seen[static_cast<std::size_t>(rank)]) {
      seen[static_cast<std::size_t>(rank)] = true;
      const ComputeStep& step = steps(rank)[taken[static_cast<std::size_t>(rank)]];
      const std::int64_t from =
          needed_stage(step.pass, places_.stage(rank, step.chunk), places_.num_stages()).value_or(0);
      text += fmt::format("{}rank {} at {} waits for stage {} on rank {}", text.empty() ? "" : ", ", rank,
                          to_string(step), from, places_.rank_of(from));
      rank = places_.rank_of(from);
    }
    error("deadlock: {}", text);
  }

  const std::vector<ComputeStep>& steps(std::int64_t rank) const {
    return schedule_.ranks[static_cast<std::size_t>(rank)];
  }

  const ComputeSchedule& schedule_;
  const ChunkPlaces& places_;
  ComputeReport report_;
};

}  // namespace

std::string_view code(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return "F";
    case Pass::backward:
      return "B";
    case Pass::backward_input:
      return "I";
    case Pass::backward_weight:
      return "W";
  }
  return "?";  // not a Pass: the checker reports it
}

std::string to_string(const ComputeStep& step) {
  return fmt::format("{}{}.{}", code(step.pass), step.micro_batch, step.chunk);
}

std::int64_t ChunkPlaces::stage(std::int64_t rank, std::int64_t chunk) const {
  const bool back = shape == Shape::v && chunk % 2 == 1;
  return chunk * num_ranks + (back ? num_ranks - 1 - rank : rank);
}

std::int64_t ChunkPlaces::rank_of(std::int64_t stage) const {
  const bool back = shape == Shape::v && stage / num_ranks % 2 == 1;
  return back ? num_ranks - 1 - stage % num_ranks : stage % num_ranks;
}

ComputeReport check(const ComputeSchedule& schedule) { return ComputeChecker(schedule).run(); }

}  // namespace espalier
