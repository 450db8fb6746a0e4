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

void check_fraction(double fraction) {
  ESPALIER_CHECK_CONFIG(fraction >= 0.0 && fraction <= 1.0,
                        "learning rate: it ends at {} times its peak; expected a number from 0 to 1", fraction);
}

// Steps of warm-up, then `share(step)` of lr.
template <class Share>
LrSchedule warmed_up(double lr, std::int64_t warmup_steps, std::int64_t total_steps, const Share& share) {
  check_lr(lr);
  ESPALIER_CHECK_CONFIG(warmup_steps >= 0 && total_steps >= warmup_steps,
                        "learning rate: warm-up of {} steps does not fit into {} steps; expected 0 <= warm-up <= steps",
                        warmup_steps, total_steps);
  return [=](std::int64_t step) {
    if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    return lr * share(step);
  };
}

// 0 at `begin` and before, 1 at `end` and after.
double done(std::int64_t step, std::int64_t begin, std::int64_t end) {
  if (step >= end) return 1.0;
  return step <= begin ? 0.0 : static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

}  // namespace

LrSchedule constant_lr(double lr) {
  check_lr(lr);
  return [lr](std::int64_t) { return lr; };
}

LrSchedule warmup_cosine_lr(double lr, std::int64_t warmup_steps, std::int64_t total_steps, double final_fraction) {
  check_fraction(final_fraction);
  return warmed_up(lr, warmup_steps, total_steps, [=](std::int64_t step) {
    const double cosine = std::cos(std::numbers::pi * done(step, warmup_steps, total_steps));
    return final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + cosine);
  });
}

LrSchedule warmup_linear_lr(double lr, std::int64_t warmup_steps, std::int64_t total_steps, double final_fraction) {
  check_fraction(final_fraction);
  return warmed_up(lr, warmup_steps, total_steps, [=](std::int64_t step) {
    return 1.0 - (1.0 - final_fraction) * done(step, warmup_steps, total_steps);
  });
}

LrSchedule warmup_constant_lr(double lr, std::int64_t warmup_steps) {
  return warmed_up(lr, warmup_steps, warmup_steps, [](std::int64_t) { return 1.0; });
}

LrSchedule warmup_stable_decay_lr(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                                  std::int64_t decay_steps, double final_fraction) {
  check_fraction(final_fraction);
  ESPALIER_CHECK_CONFIG(
      decay_steps >= 0 && decay_steps <= total_steps - warmup_steps,
      "learning rate: warm-up of {} steps and decay of {} do not fit into {} steps; expected 0 <= decay <= {}",
      warmup_steps, decay_steps, total_steps, total_steps - warmup_steps);
  return warmed_up(lr, warmup_steps, total_steps, [=](std::int64_t step) {
    return 1.0 - (1.0 - final_fraction) * done(step, total_steps - decay_steps, total_steps);
  });
}

}  // namespace espalier
