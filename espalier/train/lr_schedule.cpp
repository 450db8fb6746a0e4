// SPDX-License-Identifier: Apache-2.0
#include "espalier/train/lr_schedule.hpp"

#include <cmath>
#include <numbers>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

void check_lr(double lr) {
  ESPALIER_CHECK_CONFIG(std::isfinite(lr) && lr >= 0.0, "learning rate: {} is not a finite number >= 0", lr);
}

}  // namespace

LrSchedule constant_lr(double lr) {
  check_lr(lr);
  return [lr](std::int64_t) { return lr; };
}

LrSchedule warmup_cosine_lr(double lr, std::int64_t warmup_steps, std::int64_t total_steps, double final_fraction) {
  check_lr(lr);
  ESPALIER_CHECK_CONFIG(warmup_steps >= 0 && total_steps >= warmup_steps,
                        "learning rate: warm-up of {} steps does not fit into {} steps; expected 0 <= warm-up <= steps",
                        warmup_steps, total_steps);
  return [=](std::int64_t step) {
    if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    if (step >= total_steps) return lr * final_fraction;
    const double done = static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
    return lr * (final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + std::cos(std::numbers::pi * done)));
  };
}

}  // namespace espalier
