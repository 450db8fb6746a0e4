// SPDX-License-Identifier: Apache-2.0
// Private: what one rank has called lately and whom it waits for, kept in shared memory: the others read it when
// something went wrong, also after the rank has died.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "espalier/comm/call.hpp"

namespace espalier::detail::host {

// Text cut to a fixed length, ended by a zero.
template <std::size_t bytes>
struct FixedText {
  std::array<char, bytes> data{};

  void set(std::string_view text) {
    const std::size_t length = text.copy(data.data(), bytes - 1);
    data[length] = '\0';
  }
  std::string_view view() const { return {data.data(), ::strnlen(data.data(), bytes)}; }
};

struct PastCall {
  Call call;
  std::uint64_t context = 0;
  std::uint64_t sequence = 0;
  std::int64_t posted_ns = 0;  // of the coarse monotonic clock, which all processes share
  std::int64_t peer = -1;      // point to point: world rank
  std::int64_t finished = 0;   // 0: under way
  FixedText<32> group;
  FixedText<48> during;  // what the rank was at: an instruction of a schedule
};

struct PastWait {
  std::int64_t since_ns = 0;        // 0: it does not wait
  std::vector<std::int32_t> ranks;  // world ranks it waits for, the first kMostAwaited
};

// Written by its rank alone, under the endpoint's mutex. A reader may meet a call half written: good enough to look at.
class History {
 public:
  static constexpr std::uint64_t kCalls = 64;
  static constexpr std::size_t kMostAwaited = 15;

  // Returns what finished() wants.
  std::uint64_t posted(const PastCall& call);
  void finished(std::uint64_t number);
  void waits_for(std::int64_t since_ns, std::span<const std::int32_t> ranks);
  void waits_no_more() { since_ns_.store(0, std::memory_order_relaxed); }

  // Oldest first.
  std::vector<PastCall> calls() const;
  // CallKind::none if there was none.
  PastCall last_call() const;
  // Its collective of this number in this space, where it is among the last kCalls / 2; never a half-written one.
  std::optional<PastCall> collective(std::uint64_t context, std::uint64_t sequence) const;
  PastWait wait() const;

 private:
  static constexpr std::size_t kWords = sizeof(PastCall) / 8;
  static_assert(sizeof(PastCall) % 8 == 0);
  using Words = std::array<std::atomic<std::uint64_t>, kWords>;

  PastCall read(std::uint64_t number) const;

  std::atomic<std::uint64_t> num_posted_;
  std::array<Words, kCalls> calls_;
  std::atomic<std::int64_t> since_ns_;
  std::atomic<std::uint32_t> num_awaited_;
  std::array<std::atomic<std::int32_t>, kMostAwaited> awaited_;
};

// Now, by the clock of PastCall.
std::int64_t coarse_now_ns();

}  // namespace espalier::detail::host
