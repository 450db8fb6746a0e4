// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/progress.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "apps/espalier_train/self_launch.hpp"

namespace espalier::command {
namespace {

constexpr std::chrono::milliseconds kOverwriteEvery{100};
constexpr std::chrono::seconds kPlainLineEvery{5};
constexpr const char* kLineUp = "\x1b[1A\x1b[2K";  // lines are passed on whole, so a line is replaced by going up to it

}  // namespace

Progress::Progress(bool speaks, std::int64_t num_steps, std::int64_t first_step, std::int64_t every)
    : speaks_(speaks),
      overwrites_(shows_on_terminal() && every == 0),
      num_steps_(num_steps),
      first_step_(first_step),
      every_(every) {}

void Progress::show(const Step& at) {
  if (!speaks_) return;
  const auto now = Clock::now();
  const bool last = at.step + 1 == num_steps_;
  const Clock::duration pause = overwrites_ ? Clock::duration(kOverwriteEvery) : Clock::duration(kPlainLineEvery);
  const bool due = every_ > 0 ? (at.step + 1) % every_ == 0 : first_ || now - shown_ >= pause;
  if (!last && !due) return;
  const auto done = static_cast<double>(at.step + 1 - first_step_);
  const double seconds_left =
      std::chrono::duration<double>(now - begin_).count() / done * static_cast<double>(num_steps_ - at.step - 1);
  fmt::print("{}{}  loss {:.4f}  {}{:.0f} tokens/s  {:.0f} s left\n", line_to_overwrite_ ? kLineUp : "", place(at.step),
             at.loss, at.num_skipped > 0 ? fmt::format("{} skipped  ", at.num_skipped) : "", at.tokens_per_s,
             seconds_left);
  std::fflush(stdout);
  line_to_overwrite_ = overwrites_;
  first_ = false;
  shown_ = now;
}

void Progress::say(std::int64_t step, const std::string& text) {
  if (!speaks_) return;
  fmt::print("{}{}  {}\n", line_to_overwrite_ ? kLineUp : "", place(step), text);
  std::fflush(stdout);
  line_to_overwrite_ = false;
}

// "step  3/40"
std::string Progress::place(std::int64_t step) const {
  return fmt::format("step {:>{}}/{}", step + 1, fmt::formatted_size("{}", num_steps_), num_steps_);
}

}  // namespace espalier::command
