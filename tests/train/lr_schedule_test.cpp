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

TEST(LrSchedule, IsConstantWhenAskedTo) { EXPECT_EQ(constant_lr(0.3)(99), 0.3); }

TEST(LrSchedule, RefusesWhatCannotBeALearningRate) {
  EXPECT_THROW(constant_lr(-1.0), ConfigError);
  EXPECT_THROW(constant_lr(1.0 / 0.0), ConfigError);
  EXPECT_THROW(warmup_cosine_lr(1.0, 5, 4), ConfigError);
}

}  // namespace
}  // namespace espalier
