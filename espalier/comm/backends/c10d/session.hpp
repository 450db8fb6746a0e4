// SPDX-License-Identifier: Apache-2.0
// Private: what all groups of one rank over c10d share: the reason why the world ended, what must
// outlive its Work, and the threads that watch over both.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "espalier/comm/background_thread.hpp"
#include "espalier/comm/communicator.hpp"
#include "espalier/comm/rendezvous.hpp"

namespace espalier::detail {

using C10dWork = c10::intrusive_ptr<c10d::Work>;

// Longer than any program waits.
inline constexpr std::chrono::milliseconds kC10dForever{24L * 3600 * 1000};

// The connections of one group. The destructor of one that is ours blocks until its threads have
// ended.
class C10dLink {
 public:
  C10dLink(c10::intrusive_ptr<c10d::Backend> the_backend, bool is_the_programs)
      : backend(std::move(the_backend)), is_programs(is_the_programs) {}
  virtual ~C10dLink() = default;
  // Fails whatever is pending on them, here and, where the backend can, at the other ends.
  virtual void break_connections() = 0;

  const c10::intrusive_ptr<c10d::Backend> backend;
  const bool is_programs;  // made by the program, which may use it when the world is closed
};

class C10dSession {
 public:
  C10dSession(std::shared_ptr<C10dStore> store, std::int64_t rank, std::int64_t world_size,
              std::chrono::milliseconds timeout);
  ~C10dSession();  // closes
  C10dSession(const C10dSession&) = delete;
  C10dSession& operator=(const C10dSession&) = delete;

  const std::shared_ptr<C10dStore>& store() const;
  std::int64_t rank() const;
  std::chrono::milliseconds timeout() const;

  // Lets receivers that are still there take what was sent, at most for the time-out; does not wait
  // in a poisoned world. Then drops all connections, which ends the waits at their other ends.
  void close();

  // CommError if the world is poisoned or closed.
  void check() const;
  // What poisoned the world; empty: nothing.
  std::string failure() const;
  // Poisons the world here and, through the store, on all other ranks. The first reason stays;
  // returns it.
  std::string fail(const std::string& reason);
  // The text for an operation that its backend failed: with the reason that another rank gave, if
  // one arrives soon, else with the cause the backend saw, which then becomes everybody's reason.
  std::string explain(const std::string& operation, const std::string& cause);

  void add(std::shared_ptr<C10dLink> link);
  // Keeps what was received or reduced for nobody. `finish` is called by finish_kept() once it is there.
  void keep(C10dWork work, std::function<void()> finish = nullptr);
  void finish_kept();
  // Keeps what was sent until `to` has it.
  void keep_sent(C10dWork work, std::int64_t to, std::string operation);

  std::atomic<std::int64_t> waited_ns{0};
  std::atomic<std::int64_t> bytes_sent{0};

 private:
  struct State;

  void flush();

  std::atomic<bool> closed_{false};
  std::shared_ptr<State> state_;
  BackgroundThread watcher_;
  BackgroundThread keeper_;
};

}  // namespace espalier::detail
