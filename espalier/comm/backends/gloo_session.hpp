// SPDX-License-Identifier: Apache-2.0
// Private: what all groups of one rank over Gloo share: the reason why the world ended, what must
// outlive its Work, and the threads that watch over both.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "espalier/comm/communicator.hpp"
#include "espalier/comm/rendezvous.hpp"

namespace espalier::detail {

using GlooWork = c10::intrusive_ptr<c10d::Work>;

// Longer than any program waits. Gloo's own time-outs are set to it, since one that passes breaks
// all connections.
inline constexpr std::chrono::milliseconds kGlooForever{24L * 3600 * 1000};

// The connections of one group. The destructor blocks until Gloo's threads have ended.
class GlooLink {
 public:
  virtual ~GlooLink() = default;
  // Fails whatever is pending on them, here and at the other ends.
  virtual void break_connections() = 0;
};

class GlooSession {
 public:
  GlooSession(std::shared_ptr<C10dStore> store, std::int64_t rank, std::int64_t world_size,
              std::chrono::milliseconds timeout);
  ~GlooSession();  // closes
  GlooSession(const GlooSession&) = delete;
  GlooSession& operator=(const GlooSession&) = delete;

  const std::shared_ptr<C10dStore>& store() const;
  std::int64_t rank() const;
  std::chrono::milliseconds timeout() const;

  // Lets receivers that are still there take what was sent, at most for the time-out; does not wait
  // in a poisoned world. Then drops all connections, which ends the waits at their other ends.
  void close();

  // CommError if the world is poisoned or closed.
  void check() const;
  // Poisons the world here and, through the store, on all other ranks. The first reason stays;
  // returns it.
  std::string fail(const std::string& reason);
  // The text for an operation that Gloo failed: with the reason that another rank gave, if one
  // arrives soon, else with the cause Gloo saw, which then becomes everybody's reason.
  std::string explain(const std::string& operation, const std::string& cause);

  void add(std::shared_ptr<GlooLink> link);
  // Keeps what was received or reduced for nobody. `finish` is called by finish_kept() once it is there.
  void keep(GlooWork work, std::function<void()> finish = nullptr);
  void finish_kept();
  // Keeps what was sent until `to` has it.
  void keep_sent(GlooWork work, std::int64_t to, std::string operation);

  std::atomic<std::int64_t> waited_ns{0};
  std::atomic<std::int64_t> bytes_sent{0};

 private:
  struct State;

  // A thread that shares the state and is not waited for longer than a moment.
  class Helper {
   public:
    Helper() = default;
    explicit Helper(std::function<void()> body);
    Helper(Helper&&) = default;
    Helper& operator=(Helper&&) = default;
    ~Helper();
    bool started() const { return thread_.joinable(); }

   private:
    std::future<void> ended_;
    std::thread thread_;
  };

  void flush();

  std::atomic<bool> closed_{false};
  std::shared_ptr<State> state_;
  Helper watcher_;
  Helper keeper_;
};

}  // namespace espalier::detail
