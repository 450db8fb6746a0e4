// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/work.hpp"

#include <utility>

#include "espalier/comm/communicator.hpp"

namespace espalier {

Work::Work(std::shared_ptr<detail::Operation> operation, std::optional<std::chrono::milliseconds> timeout)
    : operation_(std::move(operation)), timeout_(timeout) {}

Work& Work::operator=(Work&& other) noexcept {
  Work dropped(std::move(operation_));  // an unfinished operation that is overwritten is parked, not lost
  operation_ = std::move(other.operation_);
  timeout_ = other.timeout_;
  return *this;
}

Work::~Work() {
  if (operation_) {
    auto& operation = *operation_;
    operation.park(std::move(operation_));
  }
}

bool Work::done() {
  if (operation_ && operation_->done()) operation_.reset();
  return operation_ == nullptr;
}

void Work::wait() {
  if (operation_) wait(timeout_.value_or(operation_->timeout()));
}

void Work::wait(std::chrono::milliseconds timeout) {
  if (!operation_) return;
  operation_->wait(detail::Clock::now() + timeout);
  operation_.reset();
}

void wait_all(std::span<Work> works) {
  for (Work& work : works) work.wait();
}

}  // namespace espalier
