// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>

namespace espalier {

namespace detail {
class Operation;
}

// An operation under way; it ends for the others whatever this rank does next. Move-only; keeps its tensors alive.
// Dropping an unfinished Work never blocks: tensors are kept, and copied back where needed during later calls.
class [[nodiscard]] Work {
 public:
  Work() = default;  // already finished
  // Without a timeout wait() takes the operation's own.
  explicit Work(std::shared_ptr<detail::Operation> operation, std::optional<std::chrono::milliseconds> timeout = {});
  Work(Work&&) noexcept = default;
  Work& operator=(Work&&) noexcept;
  ~Work();

  // Whether the results are there. Advances the world's communication; never blocks. CommError if it failed.
  bool done();

  // Blocks until the results are there, at most until the group's deadline (default), or `timeout` from now.
  // CommError names operation, group, sequence number and who was waited for.
  void wait();
  void wait(std::chrono::milliseconds timeout);

 private:
  std::shared_ptr<detail::Operation> operation_;
  std::optional<std::chrono::milliseconds> timeout_;
};

// Waits for all, in order.
void wait_all(std::span<Work> works);

}  // namespace espalier
