// SPDX-License-Identifier: Apache-2.0
#include "espalier/train/lr_schedule.hpp"

#include <gtest/gtest.h>

#include "espalier/base/error.hpp"

namespace espalier {
namespace {

TEST(LrSchedule, WarmsUpAndFallsAsACosineToATenth) {
  const LrSchedule lr = warmup_cosine_lr(1.0, 4, 12);
  EXPECT_DOUBLE_EQ(lr(0), 0.25);
  EXPECT_DOUBLE_EQ(lr(3), 1.0);
  EXPECT_DOUBLE_EQ(lr(4), 1.0);
  EXPECT_DOUBLE_EQ(lr(8), 0.55);
  EXPECT_DOUBLE_EQ(lr(12), 0.1);
  EXPECT_DOUBLE_EQ(lr(1000), 0.1);
}

TEST(LrSchedule, WarmsUpAndFallsAsALine) {
  const LrSchedule lr = warmup_linear_lr(1.0, 4, 12, 0.2);
  EXPECT_DOUBLE_EQ(lr(1), 0.5);
  EXPECT_DOUBLE_EQ(lr(4), 1.0);
  EXPECT_DOUBLE_EQ(lr(8), 0.6);
  EXPECT_DOUBLE_EQ(lr(12), 0.2);
  EXPECT_DOUBLE_EQ(lr(1000), 0.2);
}

TEST(LrSchedule, WarmsUpAndStays) {
  const LrSchedule lr = warmup_constant_lr(0.5, 2);
  EXPECT_DOUBLE_EQ(lr(0), 0.25);
  EXPECT_DOUBLE_EQ(lr(1), 0.5);
  EXPECT_DOUBLE_EQ(lr(1000), 0.5);
}

TEST(LrSchedule, StaysAtItsPeakUntilTheDecay) {
  const LrSchedule lr = warmup_stable_decay_lr(1.0, 2, 12, 4, 0.0);
  EXPECT_DOUBLE_EQ(lr(0), 0.5);
  EXPECT_DOUBLE_EQ(lr(2), 1.0);
  EXPECT_DOUBLE_EQ(lr(8), 1.0);
  EXPECT_DOUBLE_EQ(lr(9), 0.75);
  EXPECT_DOUBLE_EQ(lr(12), 0.0);
  EXPECT_DOUBLE_EQ(warmup_stable_decay_lr(1.0, 2, 12, 0)(11), 1.0);
}

TEST(LrSchedule, IsConstantWhenAskedTo) { EXPECT_EQ(constant_lr(0.3)(99), 0.3); }

TEST(LrSchedule, RefusesWhatCannotBeALearningRate) {
  EXPECT_THROW(constant_lr(-1.0), ConfigError);
  EXPECT_THROW(constant_lr(1.0 / 0.0), ConfigError);
  EXPECT_THROW(warmup_cosine_lr(1.0, 5, 4), ConfigError);
  EXPECT_THROW(warmup_cosine_lr(1.0, 0, 4, 1.5), ConfigError);
  EXPECT_THROW(warmup_linear_lr(1.0, 0, 4, -0.1), ConfigError);
  EXPECT_THROW(warmup_linear_lr(1.0, 5, 4), ConfigError);
  EXPECT_THROW(warmup_constant_lr(1.0, -1), ConfigError);
  EXPECT_THROW(warmup_stable_decay_lr(1.0, 5, 8, 4), ConfigError);
}

}  // namespace
}  // namespace espalier
