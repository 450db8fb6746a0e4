// SPDX-License-Identifier: Apache-2.0
// Every generator is sound and has the bubble and the memory that its rule promises; every mutation is found.
#include "espalier/plan/schedule/compute_schedules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "espalier/plan/schedule/compute_simulation.hpp"
#include "tests/support/expect_error.hpp"

namespace espalier {
namespace {

std::int64_t largest_peak(const ComputeSchedule& schedule) {
  const ComputeReport report = check(schedule);
  EXPECT_TRUE(report.ok()) << schedule.name << ": " << testing::PrintToString(report.errors);
  return report.ok() ? *std::ranges::max_element(report.peak_live) : -1;
}

TEST(ChunkPlaces, GoAroundOrBackAndForth) {
  const ChunkPlaces loop{.num_ranks = 3, .num_chunks = 2};
  EXPECT_EQ(loop.stage(0, 1), 3);
  EXPECT_EQ(loop.rank_of(5), 2);
  const ChunkPlaces v{.num_ranks = 3, .num_chunks = 3, .shape = ChunkPlaces::Shape::v};
  EXPECT_EQ(v.stage(2, 0), 2);
  EXPECT_EQ(v.stage(2, 1), 3);
  EXPECT_EQ(v.stage(2, 2), 8);
  for (const ChunkPlaces& places : {loop, v}) {
    std::set<std::int64_t> stages;
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      for (std::int64_t chunk = 0; chunk < places.num_chunks; ++chunk) {
        EXPECT_EQ(places.rank_of(places.stage(rank, chunk)), rank);
        stages.insert(places.stage(rank, chunk));
      }
    }
    EXPECT_EQ(std::ssize(stages), places.num_stages());
  }
}

TEST(ComputeSchedules, InterleavedIsSoundForAllRanksChunksAndLegalGroups) {
  for (std::int64_t ranks = 2; ranks <= 16; ranks += ranks < 4 ? 1 : 4) {
    for (std::int64_t micro_batches = ranks; micro_batches <= 64; micro_batches += 1 + micro_batches / 8) {
      for (std::int64_t chunks = 1; chunks <= 4; ++chunks) {
        const ComputeSchedule schedule = interleaved_1f1b(ranks, micro_batches, {.num_chunks = chunks});
        EXPECT_GE(largest_peak(schedule), 1) << ranks << " " << micro_batches << " " << chunks;
      }
    }
  }
}

// (P - 1) (F + B) / V, where the micro-batches divide over the ranks.
TEST(ComputeSchedules, InterleavedCutsTheBubbleByTheChunks) {
  for (const std::int64_t ranks : {2, 4, 8}) {
    for (const std::int64_t chunks : {1, 2, 4}) {
      const double part = 1.0 / static_cast<double>(chunks);
      const auto simulation =
          simulate(interleaved_1f1b(ranks, 3 * ranks, {.num_chunks = chunks}), {.forward = part, .backward = 2 * part});
      EXPECT_NEAR(simulation.span - simulation.ideal, 3.0 * static_cast<double>(ranks - 1) * part, 1e-9);
    }
  }
}

TEST(ComputeSchedules, InterleavedRefusesWithTheLegalGroups) {
  EXPECT_CONFIG_ERROR(static_cast<void>(interleaved_1f1b(4, 10, {.group_size = 4})), "legal group sizes: 5, 6, 10");
  EXPECT_EQ(interleaved_1f1b(4, 10).ranks[3].front(), (ComputeStep{Pass::forward, 0, 0}));  // groups of 5
  EXPECT_CONFIG_ERROR(static_cast<void>(interleaved_1f1b(4, 3)), "3 micro-batches for 4 ranks; expected at least 4");
  EXPECT_CONFIG_ERROR(static_cast<void>(interleaved_1f1b(1, 4)), "2 chunks on one rank");
  EXPECT_CONFIG_ERROR(static_cast<void>(interleaved_1f1b(2, 0)), "at least 1 of each");
  EXPECT_CONFIG_ERROR(static_cast<void>(breadth_first(1 << 20, 1 << 20, 1 << 30)), "may be at most 10000000");
}

TEST(ComputeSchedules, BreadthFirstIsSoundAndKeepsEverything) {
  for (std::int64_t ranks = 1; ranks <= 16; ranks += 3) {
    for (std::int64_t micro_batches = 1; micro_batches <= 64; micro_batches += 7) {
      for (std::int64_t chunks = 1; chunks <= 4; ++chunks) {
        EXPECT_EQ(largest_peak(breadth_first(ranks, micro_batches, chunks)), micro_batches * chunks);
      }
    }
  }
}

// With F = I = W = 1: P - 1 of bubble in zb-1p, where 1F1B has 3 (P - 1); none in zb-2p.
TEST(ComputeSchedules, ZeroBubblesHaveTheirBubbleAndMemory) {
  for (std::int64_t ranks = 1; ranks <= 16; ++ranks) {
    for (std::int64_t micro_batches = 1; micro_batches <= 64; micro_batches += 1 + micro_batches / 4) {
      const ComputeSchedule one = zb_1p(ranks, micro_batches), two = zb_2p(ranks, micro_batches);
      EXPECT_EQ(largest_peak(one), std::min(ranks, micro_batches));
      EXPECT_EQ(largest_peak(two), std::min(2 * ranks - 1, micro_batches));
      if (micro_batches < 2 * ranks - 1) continue;
      const ComputeSimulation first = simulate(one, {}), second = simulate(two, {});
      EXPECT_EQ(*std::ranges::max_element(first.bubbles), static_cast<double>(ranks - 1));
      EXPECT_EQ(*std::ranges::max_element(second.bubbles), 0.0);
      EXPECT_EQ(first.span - first.ideal, static_cast<double>(ranks - 1));
    }
  }
}

TEST(ComputeSchedules, DualPipeVIsSoundAndRefusesTooFewMicroBatches) {
  for (std::int64_t ranks = 1; ranks <= 16; ++ranks) {
    for (std::int64_t micro_batches = 2 * ranks; micro_batches <= 64; micro_batches += 5) {
      EXPECT_EQ(largest_peak(dualpipe_v(ranks, micro_batches)), 2 * ranks + 1);
    }
  }
  EXPECT_CONFIG_ERROR(static_cast<void>(dualpipe_v(4, 7)), "7 micro-batches for 4 ranks; expected at least 8");
}

TEST(ComputeSchedules, AreFoundByNameAndUnknownNamesListTheLegalOnes) {
  for (const std::string_view name : compute_schedule_names()) {
    EXPECT_EQ(compute_schedule_by_name(name, {.num_ranks = 2, .num_micro_batches = 4}).name, name);
  }
  EXPECT_CONFIG_ERROR(static_cast<void>(compute_schedule_by_name("zb", {})),
                      "'zb' is unknown; there are interleaved, breadth-first, zb-1p, zb-2p, dualpipev");
}

// ---- the checker ----

TEST(ComputeCheck, NamesWhatIsMissingTwiceAndTooEarly) {
  ComputeSchedule schedule = zb_1p(2, 2);
  auto& steps = schedule.ranks[0];
  steps.erase(std::ranges::find(steps, ComputeStep{Pass::backward_weight, 1, 0}));
  steps.push_back({Pass::forward, 0, 0});
  std::swap(*std::ranges::find(steps, ComputeStep{Pass::forward, 1, 0}),
            *std::ranges::find(steps, ComputeStep{Pass::backward_input, 1, 0}));
  EXPECT_THAT(check(schedule).errors,
              testing::UnorderedElementsAre("rank 0: F0.0 is there twice", "rank 0: I1.0 comes before its forward",
                                            "rank 0: W1.0 is missing"));
  schedule.ranks[1].push_back({Pass::forward, 2, 1});
  EXPECT_THAT(check(schedule).errors, testing::ElementsAre(testing::HasSubstr("rank 1: there is no step F2.1")));
  EXPECT_CONFIG_ERROR(static_cast<void>(simulate(schedule, {})), "is not sound");
}

TEST(ComputeCheck, TellsADeadlockAsTheRanksThatWaitForEachOther) {
  ComputeSchedule schedule = interleaved_1f1b(2, 2, {.num_chunks = 1});
  schedule.ranks[1] = {{Pass::forward, 1, 0}, {Pass::backward, 1, 0}, {Pass::forward, 0, 0}, {Pass::backward, 0, 0}};
  schedule.ranks[0] = {{Pass::forward, 0, 0}, {Pass::backward, 0, 0}, {Pass::forward, 1, 0}, {Pass::backward, 1, 0}};
  EXPECT_THAT(check(schedule).errors,
              testing::ElementsAre("deadlock: rank 0 at B0.0 waits for stage 1 on rank 1, rank 1 at F1.0 waits for "
                                   "stage 0 on rank 0"));
}

// A change of one step or the loss or repetition of one is found, unless it leaves a sound schedule, which the plain rules
// below say.
TEST(ComputeCheck, FindsEveryMutation) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::vector<ComputeSchedule> schedules{interleaved_1f1b(3, 6), breadth_first(2, 3), zb_1p(3, 4), zb_2p(2, 5),
                                               dualpipe_v(2, 5)};
  for (int trial = 0; trial < 100'000; ++trial) {
    ComputeSchedule mutant = schedules[below(schedules.size())];
    auto& steps = mutant.ranks[below(mutant.ranks.size())];
    const std::size_t at = below(steps.size());
    switch (below(4)) {
      case 0:  // lost
        steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 1:  // twice
        steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(below(steps.size())), steps[at]);
        break;
      case 2:  // of another micro-batch
        steps[at].micro_batch = static_cast<std::int32_t>((steps[at].micro_batch + 1) % mutant.num_micro_batches);
        break;
      default:  // another pass
        steps[at].pass = static_cast<Pass>((static_cast<int>(steps[at].pass) + 1 + below(3)) % 4);
    }
    EXPECT_FALSE(check(mutant).ok()) << mutant.name << " step " << at;
  }
}

}  // namespace
}  // namespace espalier
