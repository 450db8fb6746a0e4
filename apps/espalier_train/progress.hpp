// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace espalier::command {

// How far a run is: on a terminal one line that is written over and over, elsewhere a plain line now and then, or on
// both a line every so many steps.
class Progress {
 public:
  // `speaks` false: prints nothing (all ranks but one). The run goes from `first_step` to `num_steps`. `every` 0: as
  // time passes.
  Progress(bool speaks, std::int64_t num_steps, std::int64_t first_step, std::int64_t every);

  struct Step {
    std::int64_t step;  // 0 is the first
    double loss;
    double tokens_per_s;
    std::int64_t num_skipped;  // of this run until here
  };
  void show(const Step& at);

  // A line that stays, about the same step.
  void say(std::int64_t step, const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  std::string place(std::int64_t step) const;

  bool speaks_;
  bool overwrites_;
  bool line_to_overwrite_ = false;
  bool first_ = true;
  std::int64_t num_steps_;
  std::int64_t first_step_;
  std::int64_t every_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_ = {};
};

}  // namespace espalier::command
