// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace espalier::command {

// How far a run is: on a terminal one line that is written over and over, elsewhere a plain line now and then.
class Progress {
 public:
  // `speaks` false: prints nothing (all ranks but one). The run goes from `first_step` to `num_steps`.
  Progress(bool speaks, std::int64_t num_steps, std::int64_t first_step);

  struct Step {
    std::int64_t step;  // 0 is the first
    double loss;
    double tokens_per_s;
  };
  void show(const Step& at);

 private:
  using Clock = std::chrono::steady_clock;

  bool speaks_;
  bool overwrites_;
  bool first_ = true;
  std::int64_t num_steps_;
  std::int64_t first_step_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_ = {};
};

}  // namespace espalier::command
