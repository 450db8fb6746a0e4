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

// A collective or point-to-point operation under way, which ends for the other ranks whatever this one does next.
// Move-only; keeps its tensors alive. Dropping an unfinished Work never blocks: the operation keeps its tensors, and
// what is left to do on this rank alone (copying back into a tensor that is not contiguous, a mean's division, float16)
// is done during later calls on that world.
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
