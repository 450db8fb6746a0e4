// SPDX-License-Identifier: Apache-2.0
// Private.
#pragma once

#include <functional>
#include <future>
#include <thread>

namespace espalier::detail {

// A thread that holds all it needs, so that its end is waited for only a moment.
class BackgroundThread {
 public:
  BackgroundThread() = default;
  explicit BackgroundThread(std::function<void()> body);
  BackgroundThread(BackgroundThread&&) = default;
  BackgroundThread& operator=(BackgroundThread&&) = default;
  ~BackgroundThread();  // its body should be about to end
  bool started() const { return thread_.joinable(); }

 private:
  std::future<void> ended_;
  std::thread thread_;
};

}  // namespace espalier::detail
