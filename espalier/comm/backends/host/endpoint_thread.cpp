// SPDX-License-Identifier: Apache-2.0
// The thread that goes on with what is under way while no thread of the rank waits.
#include "espalier/comm/backends/host/endpoint.hpp"

#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "espalier/base/check.hpp"

namespace espalier::detail::host {
namespace {

// The thread looks again so often after it had something to do, which costs less than to wake it for every operation.
constexpr std::chrono::milliseconds kNap{1};
constexpr int kNaps = 50;  // until it sleeps

}  // namespace

// Sees to it that what is under way goes on when the rank does something else.
void Endpoint::attend() {
  if (std::exchange(thread_sleeps_, false)) attended_.notify_all();
}

// A failure is for the rank's own calls to find, which say what they were for.
bool Endpoint::is_over() const {
  return closed_ || failure_ || segment_->header().first_failure.load(std::memory_order_acquire) != 0;
}

void Endpoint::start_thread() {
  try {
    thread_ = std::thread([this] { run_thread(); });
  } catch (const std::system_error& error) {
    throw CommError(fmt::format("host backend: rank {} cannot start a thread: {}", world_rank(rank_), error.what()));
  }
}

void Endpoint::run_thread() {
  std::unique_lock lock(mutex_);
  try {
    for (int naps = 0; !is_over();) {
      if (waiters_ == 0 && !tasks_.empty()) {
        naps = 0;
        serve(lock);
      } else if (naps++ < kNaps) {
        attended_.wait_for(lock, kNap, [&] { return closed_; });
      } else {
        naps = 0;
        thread_sleeps_ = true;
        attended_.wait(lock, [&] { return closed_ || !thread_sleeps_; });
      }
    }
  } catch (const std::exception& error) {
    if (!failure_) publish_failure(failure_.emplace(error.what()));
  }
}

// Until nothing is under way, or a thread of the rank waits and so does all this itself.
void Endpoint::serve(std::unique_lock<std::mutex>& lock) {
  for (Patience patience{.looks = kYields}; waiters_ == 0 && !is_over();) {
    before_look(patience, nullptr);
    look();
    if (tasks_.empty()) break;
    after_look(patience, lock, Clock::time_point::max());
  }
  if (sleepers_ == 0) mine_.asleep.store(0, std::memory_order_relaxed);
}

void Endpoint::stop_thread(std::unique_lock<std::mutex>& lock) {
  attended_.notify_all();
  ring(rank_);
  lock.unlock();
  thread_.join();
  lock.lock();
}

}  // namespace espalier::detail::host
