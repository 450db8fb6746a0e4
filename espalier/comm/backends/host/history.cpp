// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/host/history.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>

namespace espalier::detail::host {

std::uint64_t History::posted(const PastCall& call) {
  const std::uint64_t number = num_posted_.load(std::memory_order_relaxed);
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), &call, sizeof(call));
  Words& place = calls_[number % kCalls];
  for (std::size_t i = 0; i < kWords; ++i) place[i].store(words[i], std::memory_order_relaxed);
  num_posted_.store(number + 1, std::memory_order_release);
  return number;
}

void History::finished(std::uint64_t number) {
  if (num_posted_.load(std::memory_order_relaxed) - number > kCalls) return;  // overwritten since
  calls_[number % kCalls][offsetof(PastCall, finished) / 8].store(1, std::memory_order_relaxed);
}

void History::waits_for(std::int64_t since_ns, std::span<const std::int32_t> ranks) {
  const std::size_t count = std::min(ranks.size(), kMostAwaited);
  for (std::size_t i = 0; i < count; ++i) awaited_[i].store(ranks[i], std::memory_order_relaxed);
  num_awaited_.store(static_cast<std::uint32_t>(count), std::memory_order_relaxed);
  since_ns_.store(since_ns, std::memory_order_release);
}

PastCall History::read(std::uint64_t number) const {
  const Words& place = calls_[number % kCalls];
  std::array<std::uint64_t, kWords> words;
  for (std::size_t i = 0; i < kWords; ++i) words[i] = place[i].load(std::memory_order_acquire);
  PastCall call;
  std::memcpy(static_cast<void*>(&call), words.data(), sizeof(call));
  return call;
}

std::vector<PastCall> History::calls() const {
  std::vector<PastCall> calls;
  const std::uint64_t end = num_posted_.load(std::memory_order_acquire);
  for (std::uint64_t number = end - std::min(end, kCalls); number < end; ++number) calls.push_back(read(number));
  return calls;
}

PastCall History::last_call() const {
  const std::uint64_t end = num_posted_.load(std::memory_order_acquire);
  return end == 0 ? PastCall{} : read(end - 1);
}

std::optional<PastCall> History::collective(std::uint64_t context, std::uint64_t sequence) const {
  constexpr std::uint64_t kFar = kCalls / 2;
  const std::uint64_t end = num_posted_.load(std::memory_order_acquire);
  for (std::uint64_t number = end; number > end - std::min(end, kFar); --number) {
    const PastCall past = read(number - 1);
    const bool point_to_point = past.call.kind == CallKind::send || past.call.kind == CallKind::recv;
    if (point_to_point || past.context != context || past.sequence != sequence) continue;
    if (num_posted_.load(std::memory_order_acquire) - number > kFar)
      return std::nullopt;  // it may have changed meanwhile
    return past;
  }
  return std::nullopt;
}

PastWait History::wait() const {
  PastWait wait{.since_ns = since_ns_.load(std::memory_order_acquire), .ranks = {}};
  if (wait.since_ns == 0) return wait;
  const std::size_t count = std::min<std::size_t>(num_awaited_.load(std::memory_order_relaxed), kMostAwaited);
  for (std::size_t i = 0; i < count; ++i) wait.ranks.push_back(awaited_[i].load(std::memory_order_relaxed));
  return wait;
}

std::int64_t coarse_now_ns() {
  std::timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace espalier::detail::host
