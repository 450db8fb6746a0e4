// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/hierarchical/spanning_operation.hpp"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"

namespace espalier::detail::hierarchical {

namespace {

using std::chrono::milliseconds;

// Deadlines are kept by who waits for the whole operation.
constexpr std::chrono::hours kForever{24};

}  // namespace

bool SpanningOperation::done() {
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) throw CommError(error_);
  return ended_;
}

void SpanningOperation::wait(Clock::time_point deadline) {
  if (done()) return;
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  const bool in_time = changed_.wait_until(lock, deadline, [&] { return ended_; });
  steps_->waited_ns += std::chrono::nanoseconds(Clock::now() - start).count();
  if (in_time) {
    if (!error_.empty()) throw CommError(error_);
    return;
  }
  lock.unlock();
  const auto waited = std::chrono::round<milliseconds>(Clock::now() - start);
  const std::string text = fmt::format("{} timed out after {} ms on rank {}{}", name_, waited.count(), steps_->rank(),
                                       steps_->describe_wait(name_));
  steps_->bridge().fail(text);
  throw CommError(text);
}

milliseconds SpanningOperation::timeout() const { return steps_->timeout(); }

void SpanningOperation::end(std::string error) {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  error_ = std::move(error);
  changed_.notify_all();
}

std::shared_ptr<SpanningOperation> Steps::post(std::string name, std::function<void()> body) {
  auto operation = std::make_shared<SpanningOperation>(shared_from_this(), std::move(name));
  const std::lock_guard lock(mutex_);
  jobs_.push_back({operation, std::move(body)});
  if (!thread_.started()) thread_ = BackgroundThread([self = shared_from_this()] { self->run(); });
  changed_.notify_all();
  return operation;
}

void Steps::run() {
  const at::NoGradGuard no_grad;
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [&] { return closed_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = jobs_.front();
    lock.unlock();
    perform(job);
    lock.lock();
    step_ = {};
    jobs_.pop_front();
    changed_.notify_all();
  }
}

void Steps::perform(const Job& job) {
  std::string error;
  try {
    job.body();
  } catch (const std::exception& cause) {
    error = fmt::format("{} failed: {}", job.operation->name(), cause.what());
    bridge_->fail(error);
  }
  job.operation->end(std::move(error));
}

void Steps::take(Step step, Operation& operation) {
  {
    const std::lock_guard lock(mutex_);
    step_ = std::move(step);
  }
  const auto start = Clock::now();
  operation.wait(start + kForever);
  thread_waited_ns += std::chrono::nanoseconds(Clock::now() - start).count();
}

void Steps::inside(std::string_view what, std::shared_ptr<Operation> step) {
  Operation& operation = *step;
  take({.what = fmt::format("{} inside the host", what), .inside = std::move(step)}, operation);
}

void Steps::between(std::string_view what, std::shared_ptr<Operation> step, std::string_view peers) {
  take({.what = fmt::format("{} between hosts", what), .peers = std::string(peers)}, *step);
}

bool Steps::drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return jobs_.empty(); });
}

std::string Steps::under_way() const {
  const std::lock_guard lock(mutex_);
  return jobs_.empty() ? "" : jobs_.front().operation->name();
}

std::string Steps::describe_wait(const std::string& name) const {
  const std::string first = under_way();
  Step step;
  {
    const std::lock_guard lock(mutex_);
    step = step_;
  }
  std::string text;
  if (!first.empty() && first != name) text += fmt::format(", behind {}", first);
  if (!step.what.empty()) text += fmt::format(", in {}", step.what);
  if (step.inside != nullptr) text += "; " + detail::describe_wait(*step.inside);
  if (!step.peers.empty())
    text += fmt::format("; waiting for rank{} {}", step.peers.find(',') == std::string::npos ? "" : "s", step.peers);
  return text;
}

void Steps::close() {
  BackgroundThread ends;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  ends = std::move(thread_);
}

}  // namespace espalier::detail::hierarchical
