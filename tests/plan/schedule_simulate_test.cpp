// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/simulate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "espalier/base/error.hpp"
#include "espalier/plan/schedule/schedules.hpp"

namespace espalier {
namespace {

TEST(Simulate, BubbleIsStagesMinusOneForwardsAndBackwards) {
  for (std::int64_t stages = 1; stages <= 8; ++stages)
    for (std::int64_t micro_batches = 1; micro_batches <= 12; ++micro_batches)
      for (const ScheduleKind& kind : {gpipe(), one_f_one_b()}) {
        const Simulation s = simulate(kind.generate(stages, micro_batches), {.forward = 1.5, .backward = 2.25});
        EXPECT_DOUBLE_EQ(s.ideal, static_cast<double>(micro_batches) * 3.75) << kind.name;
        EXPECT_DOUBLE_EQ(s.span - s.ideal, static_cast<double>(stages - 1) * 3.75)
            << kind.name << " S=" << stages << " M=" << micro_batches;
      }
}

TEST(Simulate, ForwardOnlyFillsThePipeOnce) {
  const Simulation s = simulate(forward_only().generate(4, 6), {.forward = 2.0});
  EXPECT_DOUBLE_EQ(s.span, (6 + 4 - 1) * 2.0);
  EXPECT_DOUBLE_EQ(s.ideal, 12.0);
}

TEST(Simulate,
     TransfersDelayWhatWaitsForThem) {  // one micro-batch down and up three stages: 4 transfers
  const Simulation s = simulate(gpipe().generate(3, 1), {.forward = 1, .backward = 2, .transfer = 0.5});
  EXPECT_DOUBLE_EQ(s.span, 3 * 1 + 3 * 2 + 4 * 0.5);
  EXPECT_DOUBLE_EQ(s.stages[2][0].begin, 2 * (1 + 0.5));
}

TEST(Simulate, ListsEachStagesWorkInOrderWithoutOverlap) {
  const Simulation s = simulate(one_f_one_b().generate(4, 8), {.transfer = 0.25});
  for (std::size_t stage = 0; stage < 4; ++stage) {
    ASSERT_EQ(s.stages[stage].size(), 16u);
    double end = 0;
    for (const Interval& interval : s.stages[stage]) {
      EXPECT_GE(interval.begin, end);
      EXPECT_EQ(interval.end - interval.begin, interval.instruction.op == Op::forward ? 1.0 : 2.0);
      end = interval.end;
    }
    EXPECT_LE(end, s.span);
  }
}

TEST(Simulate, RefusesUnsoundSchedulesAndBadTimes) {
  Schedule schedule = one_f_one_b().generate(2, 2);
  const auto refusal = [&](const ScheduleCosts& costs) -> std::string {
    try {
      simulate(schedule, costs);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal({.forward = -1}), "simulate: forward time -1; it must be finite and at least 0");
  EXPECT_EQ(refusal({.transfer = INFINITY}), "simulate: transfer time inf; it must be finite and at least 0");
  EXPECT_EQ(refusal({.backward = NAN}), "simulate: backward time nan; it must be finite and at least 0");
  schedule.stages[1].steps.pop_back();
  EXPECT_THAT(refusal({}), testing::HasSubstr("simulate: schedule 1f1b is not sound (5 errors): "
                                              "stage 1: SG of micro-batch 1 is missing"));
}

}  // namespace
}  // namespace espalier
