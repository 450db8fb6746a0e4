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

Progress::Progress(bool speaks, std::int64_t num_steps, std::int64_t first_step)
    : speaks_(speaks), overwrites_(shows_on_terminal()), num_steps_(num_steps), first_step_(first_step) {}

void Progress::show(const Step& at) {
  if (!speaks_) return;
  const auto now = Clock::now();
  const bool last = at.step + 1 == num_steps_;
  const Clock::duration pause = overwrites_ ? Clock::duration(kOverwriteEvery) : Clock::duration(kPlainLineEvery);
  if (!last && !first_ && now - shown_ < pause) return;
  const auto done = static_cast<double>(at.step + 1 - first_step_);
  const double seconds_left =
      std::chrono::duration<double>(now - begin_).count() / done * static_cast<double>(num_steps_ - at.step - 1);
  fmt::print("{}step {:>{}}/{}  loss {:.4f}  {:.0f} tokens/s  {:.0f} s left\n", overwrites_ && !first_ ? kLineUp : "",
             at.step + 1, fmt::formatted_size("{}", num_steps_), num_steps_, at.loss, at.tokens_per_s, seconds_left);
  std::fflush(stdout);
  first_ = false;
  shown_ = now;
}

}  // namespace espalier::command
