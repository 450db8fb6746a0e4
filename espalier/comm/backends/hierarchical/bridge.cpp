// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/hierarchical/bridge.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "espalier/base/error.hpp"

namespace espalier::detail::hierarchical {

namespace {

constexpr std::chrono::milliseconds kLook{20};  // from one look at both worlds to the next

}  // namespace

struct Bridge::State {
  std::shared_ptr<Transport> inside;
  std::shared_ptr<Transport> between;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::string reason;
  bool stopping = false;

  void fail(std::string_view why) {
    {
      const std::lock_guard lock(mutex);
      if (!reason.empty()) return;
      reason = why;
    }
    if (inside != nullptr) inside->abort(why);
    between->abort(why);
  }

  // The one inside first: it knows who died, where the other only loses a connection.
  void look() {
    for (Transport* world : {inside.get(), between.get()}) {
      if (const std::string why = world->failure(); !why.empty()) fail(why);
    }
  }

  void run() {
    for (std::unique_lock lock(mutex); !stopping;) {
      lock.unlock();
      look();
      lock.lock();
      if (!reason.empty()) return;
      changed.wait_for(lock, kLook, [&] { return stopping; });
    }
  }
};

Bridge::Bridge(std::shared_ptr<Transport> inside, std::shared_ptr<Transport> between)
    : state_(std::make_shared<State>()) {
  state_->inside = std::move(inside);
  state_->between = std::move(between);
  if (state_->inside != nullptr) thread_ = BackgroundThread([state = state_] { state->run(); });
}

Bridge::~Bridge() { stop(); }

void Bridge::fail(std::string_view reason) { state_->fail(reason); }

std::string Bridge::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->reason;
}

void Bridge::check() const {
  if (const std::string reason = failure(); !reason.empty()) throw CommError(reason);
}

void Bridge::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->stopping, true)) return;
    state_->changed.notify_all();
  }
  {
    const BackgroundThread ended = std::move(thread_);
  }
  if (state_->inside != nullptr) state_->look();
}

}  // namespace espalier::detail::hierarchical
