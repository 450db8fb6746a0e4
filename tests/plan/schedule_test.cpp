// SPDX-License-Identifier: Apache-2.0
// What must hold for any number of stages; the listings themselves are compared with the
// reference's by oracle_check.
#include "espalier/plan/schedule/schedules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "espalier/base/error.hpp"
#include "espalier/plan/schedule/check.hpp"

namespace espalier {
namespace {

// Calls fn(schedule) for every kind and all M <= 12, S <= 8.
template <class Fn>
void for_all_schedules(Fn fn) {
  for (std::int64_t stages = 1; stages <= 8; ++stages)
    for (std::int64_t micro_batches = 1; micro_batches <= 12; ++micro_batches) {
      for (const ScheduleKind& kind : {gpipe(), one_f_one_b(), forward_only()})
        fn(kind.generate(stages, micro_batches));
      if (stages == 1) fn(data_parallel_only().generate(1, micro_batches));
    }
}

TEST(Schedules, AreSoundForUpToTwelveMicroBatchesAndEightStages) {
  int checked = 0;
  for_all_schedules([&](const Schedule& schedule) {
    const ScheduleReport report = check(schedule);
    EXPECT_TRUE(report.ok()) << schedule.name << " S=" << schedule.num_stages() << " M=" << schedule.num_micro_batches
                             << ": " << report.errors.front();
    ++checked;
  });
  EXPECT_EQ(checked, 8 * 12 * 3 + 12);
}

TEST(Schedules, KeepAsManyMicroBatchesAliveAsTheirKindPromises) {
  for_all_schedules([](const Schedule& schedule) {
    const std::int64_t stages = schedule.num_stages(), micro_batches = schedule.num_micro_batches;
    const auto peaks = check(schedule).peak_live_micro_batches;
    ASSERT_EQ(static_cast<std::int64_t>(peaks.size()), stages);
    for (std::int64_t s = 0; s < stages; ++s) {
      std::int64_t expected = 1;
      if (schedule.name == "gpipe") expected = micro_batches;
      if (schedule.name == "1f1b") expected = std::min(stages - s, micro_batches);
      EXPECT_EQ(peaks[s], expected) << schedule.name << " S=" << stages << " M=" << micro_batches << " stage " << s;
      EXPECT_LE(peaks[s], schedule.stages[s].num_buffers);
    }
  });
}

TEST(Schedules, BackwardInGpipeRunsInAscendingOrder) {
  const Schedule schedule = gpipe().generate(3, 5);
  for (const StageProgram& program : schedule.stages) {
    std::string order;
    for (const auto& step : program.steps)
      for (const Instruction& i : step)
        if (i.op == Op::forward || i.op == Op::backward)
          order += std::string(code(i.op)) + std::to_string(i.micro_batch);
    EXPECT_EQ(order, "F0F1F2F3F4B0B1B2B3B4");
    EXPECT_EQ(program.num_buffers, 5);
  }
}

TEST(Schedules, RefuseCountsBelowOneAndBeyondMemory) {
  const auto text = [](const ScheduleKind& kind, std::int64_t stages, std::int64_t micro_batches) -> std::string {
    try {
      kind.generate(stages, micro_batches);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  for (std::string_view name : schedule_names()) {
    EXPECT_EQ(text(schedule_by_name(name), 0, 4),
              "schedule " + std::string(name) + ": 0 stages; a schedule needs at least 1");
    EXPECT_EQ(text(schedule_by_name(name), 1, -2),
              "schedule " + std::string(name) + ": -2 micro-batches; a schedule needs at least 1");
  }
  EXPECT_THAT(text(one_f_one_b(), 1000, 20000), testing::HasSubstr("1000 stages x 20000 micro-batches"));
  EXPECT_THAT(text(gpipe(), INT64_MAX, INT64_MAX), testing::HasSubstr("at most 10000000"));
  EXPECT_THAT(text(data_parallel_only(), 2, 4), testing::HasSubstr("2 stages"));
}

TEST(Schedules, AreFoundByNameAndUnknownNamesListTheLegalOnes) {
  for (std::string_view name : schedule_names()) EXPECT_EQ(schedule_by_name(name).name, name);
  try {
    schedule_by_name("dualpipe");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "schedule: 'dualpipe' is unknown; there are gpipe, 1f1b, forward-only, data-parallel");
  }
}

}  // namespace
}  // namespace espalier
