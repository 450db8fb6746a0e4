// SPDX-License-Identifier: Apache-2.0
// Private: operations of several steps. A thread runs those of one group one after another, so that they go on whatever
// the rank does next; what the rank holds waits for the thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "espalier/comm/backends/hierarchical/bridge.hpp"
#include "espalier/comm/background_thread.hpp"
#include "espalier/comm/communicator.hpp"

namespace espalier::detail::hierarchical {

class Steps;

// One of them, as its group's thread and the rank that waits see it.
class SpanningOperation final : public Operation {
 public:
  SpanningOperation(std::shared_ptr<Steps> steps, std::string name)
      : steps_(std::move(steps)), name_(std::move(name)) {}

  bool done() override;
  void wait(Clock::time_point deadline) override;
  std::chrono::milliseconds timeout() const override;
  void park(std::shared_ptr<Operation>) override {}  // the thread has all it needs

  const std::string& name() const { return name_; }
  void end(std::string error);

 private:
  const std::shared_ptr<Steps> steps_;
  const std::string name_;  // "all_reduce(sum, float32 x 4) #3 of group 'data' [0,1,2,3]"
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::string error_;
};

// The operations of one group on one rank, in order.
class Steps : public std::enable_shared_from_this<Steps> {
 public:
  Steps(std::shared_ptr<Bridge> bridge, std::int64_t rank, std::chrono::milliseconds timeout)
      : bridge_(std::move(bridge)), rank_(rank), timeout_(timeout) {}

  // `body` runs on the thread; it does its steps with `inside` and `between`, which throw.
  std::shared_ptr<SpanningOperation> post(std::string name, std::function<void()> body);
  // One step, waited for. `what` names it: "reduce_scatter".
  void inside(std::string_view what, std::shared_ptr<Operation> step);
  void between(std::string_view what, std::shared_ptr<Operation> step, std::string_view peers);

  // Whether nothing is left to do, at that time at the latest.
  bool drain(Clock::time_point deadline);
  // What is under way, for messages: "all_reduce(...) #3 of group 'data' [0,1,2,3]"; empty: nothing.
  std::string under_way() const;
  // Why `name` is not done: "in all_reduce between hosts; waiting for rank 2".
  std::string describe_wait(const std::string& name) const;
  // Ends the thread, which should have nothing left to do or only steps that fail.
  void close();

  Bridge& bridge() const { return *bridge_; }
  std::int64_t rank() const { return rank_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  std::atomic<std::int64_t> waited_ns{0};         // by the rank
  std::atomic<std::int64_t> thread_waited_ns{0};  // by the thread, as the two transports count too

 private:
  struct Job {
    std::shared_ptr<SpanningOperation> operation;
    std::function<void()> body;
  };
  struct Step {
    std::string what = {};
    std::string peers = {};  // between hosts
    std::shared_ptr<Operation> inside = nullptr;
  };

  void run();
  void take(Step step, Operation& operation);
  void perform(const Job& job);

  const std::shared_ptr<Bridge> bridge_;
  const std::int64_t rank_;
  const std::chrono::milliseconds timeout_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first one is under way
  Step step_;
  bool closed_ = false;
  BackgroundThread thread_;
};

}  // namespace espalier::detail::hierarchical
