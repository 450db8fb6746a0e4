// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/background_thread.hpp"

#include <chrono>
#include <utility>

namespace espalier::detail {

BackgroundThread::BackgroundThread(std::function<void()> body) {
  std::packaged_task<void()> task(std::move(body));
  ended_ = task.get_future();
  thread_ = std::thread(std::move(task));
}

BackgroundThread::~BackgroundThread() {
  constexpr std::chrono::milliseconds kMoment{1000};
  if (!thread_.joinable()) return;
  if (ended_.wait_for(kMoment) == std::future_status::ready) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace espalier::detail
