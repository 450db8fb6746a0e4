// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace espalier {

// Learning rate at a step (0 is the first).
using LrSchedule = std::function<double(std::int64_t step)>;

LrSchedule constant_lr(double lr);

// Linear from lr/warmup_steps to lr over `warmup_steps`, then half a cosine down to `final_fraction` * lr at
// `total_steps`, constant afterwards. ConfigError unless 0 <= warmup_steps <= total_steps, lr >= 0 and finite.
LrSchedule warmup_cosine_lr(double lr, std::int64_t warmup_steps, std::int64_t total_steps,
                            double final_fraction = 0.1);

}  // namespace espalier
