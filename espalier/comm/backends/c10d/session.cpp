// SPDX-License-Identifier: Apache-2.0
// Keys in the world's store:
//   c10d/stop/<rank>   why this rank must stop; empty: its own transport closes
//   c10d/left/<rank>   this rank takes nothing any more
#include "espalier/comm/backends/c10d/session.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "espalier/base/check.hpp"

namespace espalier::detail {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kReasonTime{300};  // how long a rank that lost a connection waits for the store to say why
constexpr milliseconds kFlushPause{20};

std::string stop_key(std::int64_t rank) { return fmt::format("c10d/stop/{}", rank); }
std::string left_key(std::int64_t rank) { return fmt::format("c10d/left/{}", rank); }

}  // namespace

struct C10dSession::State {
  struct Kept {
    C10dWork work;
    std::function<void()> finish;
  };
  struct Sent {
    C10dWork work;
    std::int64_t to;
    std::string operation;
  };

  std::shared_ptr<C10dStore> store;
  std::int64_t rank;
  std::int64_t world_size;
  milliseconds timeout;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::string poison;
  bool closing = false;
  std::vector<std::shared_ptr<C10dLink>> links;
  std::vector<Kept> kept;
  std::deque<Sent> sent;

  // Whether this reason is the first.
  bool take_poison(const std::string& reason) {
    const std::lock_guard lock(mutex);
    if (!poison.empty() || closing) return false;
    poison = reason;
    changed.notify_all();
    return true;
  }

  // What the program made is broken only when the world is.
  void break_links(bool is_poisoned = true) {
    std::vector<std::shared_ptr<C10dLink>> all;
    {
      const std::lock_guard lock(mutex);
      all = links;
    }
    for (const auto& link : all)
      if (is_poisoned || !link->is_programs) link->break_connections();
  }

  std::string fail(const std::string& reason) {
    if (!take_poison(reason)) {
      const std::lock_guard lock(mutex);
      return poison.empty() ? reason : poison;
    }
    try {
      for (std::int64_t other = 0; other < world_size; ++other)
        if (other != rank) store->set(stop_key(other), fmt::format("rank {} reported: {}", rank, reason));
    } catch (const CommError&) {  // without a store they learn it from their connections
    }
    break_links();
    return reason;
  }

  std::string explain(const std::string& operation, const std::string& cause) {
    std::string reason;
    {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, kReasonTime, [&] { return !poison.empty() || closing; });
      reason = poison;
    }
    if (!reason.empty()) return fmt::format("{} failed: {}", operation, reason);
    return fail(fmt::format("{} failed: {}", operation, cause));
  }

  // Ends with the first reason, with the store, or with the session, which sets the key to nothing.
  void watch(C10dStore own) {
    try {
      const std::string reason = own.get(stop_key(rank), kC10dForever);
      if (!reason.empty() && take_poison(reason)) break_links();
    } catch (const std::exception&) {  // the store's server has gone; connections tell what else happens
    }
  }

  // Waits for the arrival of what was sent, the oldest first.
  void keep_watch_over_sent() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closing || !sent.empty(); });
      if (sent.empty()) return;
      const Sent oldest = sent.front();
      lock.unlock();
      try {
        oldest.work->wait(kC10dForever);
      } catch (const std::exception& error) {
        explain(oldest.operation, error.what());
      }
      lock.lock();
      sent.pop_front();
      changed.notify_all();
    }
  }

  bool has_left(std::int64_t other) {
    try {
      return store->has(left_key(other));
    } catch (const CommError&) {
      return true;  // who serves the store has left, and whoever could ask with us
    }
  }
};

C10dSession::C10dSession(std::shared_ptr<C10dStore> store, std::int64_t rank, std::int64_t world_size,
                         milliseconds timeout)
    : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  state_->rank = rank;
  state_->world_size = world_size;
  state_->timeout = timeout;
  // A connection of its own, since a waiting one serves nobody else.
  watcher_ =
      BackgroundThread([state = state_, own = C10dStore(state_->store->c10d_store()->clone())] { state->watch(own); });
}

C10dSession::~C10dSession() { close(); }

void C10dSession::close() {
  if (closed_.exchange(true)) return;
  flush();
  std::vector<std::shared_ptr<C10dLink>> links;
  bool is_poisoned = false;
  bool is_broken = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closing = true;
    state_->changed.notify_all();
    is_poisoned = !state_->poison.empty();
    links = state_->links;
    const bool is_pending =
        !state_->sent.empty() || std::any_of(state_->kept.begin(), state_->kept.end(),
                                             [](const State::Kept& one) { return !one.work->isCompleted(); });
    is_broken = is_poisoned || is_pending;
    if (!is_broken) state_->links.clear();
  }
  if (is_broken) {
    state_->break_links(is_poisoned);
    // Should one of the backend's threads not notice, nobody here waits for it.
    std::thread([state = state_, links = std::move(links)]() mutable {
      {
        const std::lock_guard lock(state->mutex);
        state->links.clear();
      }
      links.clear();
    }).detach();
  }
  try {
    state_->store->set(stop_key(state_->rank), "");
  } catch (const CommError&) {  // then the watcher has ended, too
  }
}

const std::shared_ptr<C10dStore>& C10dSession::store() const { return state_->store; }
std::int64_t C10dSession::rank() const { return state_->rank; }
milliseconds C10dSession::timeout() const { return state_->timeout; }

void C10dSession::check() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->poison.empty()) throw CommError(state_->poison);
  if (state_->closing)
    throw CommError(fmt::format("rank {} has closed this world; nothing can be called on it any more", state_->rank));
}

std::string C10dSession::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->poison;
}

std::string C10dSession::fail(const std::string& reason) { return state_->fail(reason); }

std::string C10dSession::explain(const std::string& operation, const std::string& cause) {
  return state_->explain(operation, cause);
}

void C10dSession::add(std::shared_ptr<C10dLink> link) {
  const std::lock_guard lock(state_->mutex);
  state_->links.push_back(std::move(link));
}

void C10dSession::keep(C10dWork work, std::function<void()> finish) {
  finish_kept();
  const std::lock_guard lock(state_->mutex);
  state_->kept.push_back({std::move(work), std::move(finish)});
}

void C10dSession::finish_kept() {
  std::vector<State::Kept> ended;
  {
    const std::lock_guard lock(state_->mutex);
    const auto first = std::stable_partition(state_->kept.begin(), state_->kept.end(),
                                             [](const State::Kept& one) { return !one.work->isCompleted(); });
    std::move(first, state_->kept.end(), std::back_inserter(ended));
    state_->kept.erase(first, state_->kept.end());
  }
  const at::NoGradGuard no_grad;
  for (const State::Kept& one : ended)
    if (one.finish && one.work->isSuccess()) one.finish();
}

void C10dSession::keep_sent(C10dWork work, std::int64_t to, std::string operation) {
  const std::lock_guard lock(state_->mutex);
  state_->sent.push_back({std::move(work), to, std::move(operation)});
  if (!keeper_.started()) keeper_ = BackgroundThread([state = state_] { state->keep_watch_over_sent(); });
  state_->changed.notify_all();
}

void C10dSession::flush() {
  std::unique_lock lock(state_->mutex);
  const auto must_wait = [&] { return !state_->sent.empty() && state_->poison.empty(); };
  if (!must_wait()) return;
  lock.unlock();
  try {
    state_->store->set(left_key(state_->rank), "1");
  } catch (const CommError&) {
    return;
  }
  lock.lock();
  const auto deadline = Clock::now() + state_->timeout;
  while (must_wait() && Clock::now() < deadline) {
    const std::int64_t to = state_->sent.front().to;
    if (state_->changed.wait_for(lock, kFlushPause) == std::cv_status::no_timeout) continue;
    lock.unlock();
    const bool in_vain = state_->has_left(to);
    lock.lock();
    if (in_vain) return;
  }
}

}  // namespace espalier::detail
