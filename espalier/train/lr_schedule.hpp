// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace espalier {

// Learning rate at a step (0 is the first).
using LrSchedule = std::function<double(std::int64_t step)>;

LrSchedule constant_lr(double lr);

// Linear from lr/warmup_steps to lr over `warmup_steps`; then half a cosine down to `final_fraction` * lr at
// `total_steps`, constant afterwards. ConfigError unless 0 <= warmup_steps <= total_steps, lr >= 0 and finite, and
// 0 <= final_fraction <= 1; so for the next three.
LrSchedule warmup_cosine_lr(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                            double final_fraction = 0.1);

// The same warm-up, then a straight line down to `final_fraction` * lr at `total_steps`.
LrSchedule warmup_linear_lr(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                            double final_fraction = 0.1);

// The same warm-up, then lr.
LrSchedule warmup_constant_lr(double lr, std::int64_t warmup_steps);

// The same warm-up, then lr until `decay_steps` before `total_steps`, then a straight line down to `final_fraction` *
// lr ("warm-up, stable, decay"; Hu et al. 2024). ConfigError also where warm-up and decay do not both fit.
LrSchedule warmup_stable_decay_lr(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                                  std::int64_t decay_steps, double final_fraction = 0.1);

}  // namespace espalier
