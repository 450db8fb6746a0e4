// SPDX-License-Identifier: Apache-2.0
// How an endpoint finds that something is wrong with its peers or their calls, and what it says about it.
#include "espalier/comm/backends/host/endpoint.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/host/postmortem.hpp"

namespace espalier::detail::host {

RankStatus Endpoint::status(std::int64_t rank) const {
  return static_cast<RankStatus>(segment_->slot(rank).status.load(std::memory_order_acquire));
}

std::string Endpoint::describe_rank(std::int64_t rank) const {
  const RankSlot& slot = segment_->slot(rank);
  return fmt::format("rank {} ({}pid {}{}{})", world_rank(rank), slot.is_thread.load() != 0 ? "thread of " : "",
                     slot.pid.load(), options_.names.host.empty() ? "" : " on ", options_.names.host);
}

std::string Endpoint::describe_last_call(std::int64_t rank) const {
  const PastCall last = segment_->slot(rank).history.last_call();
  if (last.call.kind == CallKind::none) return "it has called nothing yet";
  const auto found = spaces_.find(last.context);
  std::string text = fmt::format(
      "its last call is {} #{} of {}", to_string(last.call), last.sequence,
      found == spaces_.end() ? fmt::format("group '{}' of others", last.group.view()) : found->second->describe());
  if (!last.during.view().empty()) text += fmt::format(", in {}", last.during.view());
  return text;
}

void Endpoint::check_failed(const Task* on_behalf) {
  if (failure_) throw CommError(*failure_);
  const std::uint32_t first = segment_->header().first_failure.load(std::memory_order_acquire);
  if (first == 0) return;
  const std::int64_t culprit = static_cast<std::int64_t>(first) - 1;
  std::string text = describe_rank(culprit);
  if (status(culprit) == RankStatus::failed) {
    text += fmt::format(" gave up: {}", segment_->slot(culprit).failure.data());
  } else {
    text += fmt::format(" died; {}", describe_last_call(culprit));
  }
  if (on_behalf != nullptr) text = fmt::format("{} on rank {}: {}", on_behalf->describe(), world_rank(rank_), text);
  failure_ = std::move(text);
  auto attached = static_cast<std::uint32_t>(RankStatus::attached);
  mine_.status.compare_exchange_strong(attached, static_cast<std::uint32_t>(RankStatus::failed));
  throw CommError(*failure_);
}

void Endpoint::fail(std::string text) {
  failure_ = std::move(text);
  publish_failure(*failure_);
  throw CommError(*failure_);
}

void Endpoint::publish_failure(std::string_view text) {
  if (status(rank_) != RankStatus::attached && status(rank_) != RankStatus::closing) return;
  const std::size_t length = std::min(text.size(), mine_.failure.size() - 1);
  std::memcpy(mine_.failure.data(), text.data(), length);
  mine_.failure[length] = '\0';
  mine_.status.store(static_cast<std::uint32_t>(RankStatus::failed), std::memory_order_release);
  claim_first_failure(rank_, text);
  ring_all();
}

// The first one's failure is the world's; whoever finds it leaves the post-mortem.
void Endpoint::claim_first_failure(std::int64_t culprit, std::string_view text) {
  std::uint32_t none = 0;
  if (!segment_->header().first_failure.compare_exchange_strong(none, static_cast<std::uint32_t>(culprit + 1))) return;
  if (options_.postmortem.empty()) return;
  const std::string trouble = write_postmortem(*segment_, options_.names, rank_, options_.postmortem, text);
  Log log(options_.log, fmt::format("[rank {}] ", world_rank(rank_)));
  if (trouble.empty()) {
    log.info(fmt::format("host backend: what every rank was doing is in {0}; read it with: espalier postmortem {0}",
                         options_.postmortem));
  } else {
    log.warning(fmt::format("host backend: no post-mortem file: {}", trouble));
  }
}

void Endpoint::note_death(std::int64_t rank) {
  auto alive = static_cast<std::uint32_t>(RankStatus::attached);
  const auto died = static_cast<std::uint32_t>(RankStatus::died);
  std::atomic<std::uint32_t>& its_status = segment_->slot(rank).status;
  if (!its_status.compare_exchange_strong(alive, died) &&
      (alive != static_cast<std::uint32_t>(RankStatus::closing) || !its_status.compare_exchange_strong(alive, died))) {
    return;
  }
  claim_first_failure(rank, fmt::format("{} died; {}", describe_rank(rank), describe_last_call(rank)));
  ring_all();
}

void Endpoint::check_peers(Task& task) {
  note_deaths();
  check_failed(&task);
  check_left(task);
  for (const std::shared_ptr<Task>& other : std::vector(tasks_)) {  // checking one may finish others
    if (other->finished || other->point_to_point()) continue;
    check_left(*other);
    if (!other->finished) check_same_call(*other);
  }
}

// Ranks that wait for each other's messages, as two that both take themselves for the root, learn of it nowhere else.
void Endpoint::check_same_call(const Task& task) {
  for (const std::int32_t member : task.awaited()) {
    const std::int32_t rank = task.space.members[static_cast<std::size_t>(member)];
    const auto theirs = segment_->slot(rank).history.collective(task.space.context, task.sequence);
    if (theirs && theirs->call != task.call) fail_different(task.space, task.sequence, task.call, theirs->call, rank);
  }
}

void Endpoint::fail_different(const Space& space, std::uint64_t sequence, const Call& mine, const Call& theirs,
                              std::int64_t rank) {
  fail(fmt::format(
      "{}: the ranks call different operations: operation #{} is {} on {} but {} on {}; all members must call the same "
      "operations in the same order",
      space.describe(), sequence, to_string(mine), describe_rank(rank_), to_string(theirs), describe_rank(rank)));
}

void Endpoint::note_deaths() {
  next_check_ = Clock::now() + kTick;
  std::vector<pollfd> watched;
  std::vector<std::int64_t> ranks;
  for (std::int64_t peer = 0; peer < num_ranks_; ++peer) {
    const int fd = pidfds_[static_cast<std::size_t>(peer)];
    if (fd < 0) continue;
    watched.push_back({fd, POLLIN, 0});
    ranks.push_back(peer);
  }
  if (watched.empty() || ::poll(watched.data(), watched.size(), 0) <= 0) return;
  for (std::size_t i = 0; i < watched.size(); ++i) {
    if (watched[i].revents == 0) continue;
    int& fd = pidfds_[static_cast<std::size_t>(ranks[i])];
    ::close(std::exchange(fd, -1));
    note_death(ranks[i]);  // unless it had closed its world or failed before
  }
}

// Whether this rank will do nothing more for the task. One that is closing still hands over, but receives no more.
bool Endpoint::has_left(const Task& task, std::int64_t rank) const {
  const RankStatus now = status(rank);
  return now == RankStatus::closed || (now == RankStatus::closing && task.call.kind == CallKind::send);
}

// The awaited members that have left.
std::vector<std::int32_t> Endpoint::gone(const Task& task) const {
  std::vector<std::int32_t> members = task.awaited();
  std::erase_if(members, [&](std::int32_t member) {
    return !has_left(task, task.space.members[static_cast<std::size_t>(member)]);
  });
  return members;
}

void Endpoint::check_left(Task& task) {
  const std::vector<std::int32_t> left = gone(task);
  if (left.empty()) return;
  progress(&task);  // takes in what they sent before they left
  if (task.finished) return;
  const std::vector<std::int32_t> awaited = task.awaited();
  for (const std::int32_t member : left) {
    if (std::find(awaited.begin(), awaited.end(), member) == awaited.end()) continue;
    const std::int64_t rank = task.space.members[static_cast<std::size_t>(member)];
    fail(fmt::format("{} on rank {}: {} has left: it closed its world before taking part; {}", task.describe(),
                     world_rank(rank_), describe_rank(rank), describe_last_call(rank)));
  }
}

// Those come first that have not taken all messages from this rank, which one that waits does.
std::vector<std::int32_t> Endpoint::awaited_ranks(const Task& task) const {
  std::vector<std::int32_t> ranks = task.awaited();
  for (std::int32_t& member : ranks) member = task.space.members[static_cast<std::size_t>(member)];
  std::ranges::stable_partition(ranks, [&](std::int32_t rank) {
    const Ring& ring = segment_->ring(rank_, rank);
    return ring.head.load(std::memory_order_relaxed) != ring.tail.load(std::memory_order_relaxed);
  });
  return ranks;
}

std::string Endpoint::describe_awaited(const Task& task) const {
  std::vector<std::string> awaited;
  for (const std::int32_t rank : awaited_ranks(task)) {
    awaited.push_back(fmt::format("{}: {}", describe_rank(rank), describe_last_call(rank)));
  }
  return fmt::format("{}", fmt::join(awaited, "; "));
}

// Whom the awaited ranks wait for in turn, where who waits for nobody is the one to look at, and what the others do.
std::string Endpoint::describe_others(const Task& task) const {
  constexpr std::size_t kMost = 16;
  const std::vector<std::int32_t> awaited = awaited_ranks(task);
  std::vector<std::int32_t> ranks = awaited;
  std::vector<std::string> in_turn, meanwhile;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const PastWait wait = segment_->slot(ranks[i]).history.wait();
    if (wait.ranks.empty()) continue;
    const std::int32_t next = wait.ranks.front();
    in_turn.push_back(fmt::format("rank {} waits for rank {}", world_rank(ranks[i]), world_rank(next)));
    if (next != rank_ && std::ranges::find(ranks, next) == ranks.end()) ranks.push_back(next);
  }
  for (std::int32_t rank = 0; rank < num_ranks_ && meanwhile.size() < kMost; ++rank) {
    if (rank == rank_ || std::ranges::find(awaited, rank) != awaited.end()) continue;
    meanwhile.push_back(fmt::format("{}: {}", describe_rank(rank), describe_last_call(rank)));
  }
  return fmt::format("{}{}{}{}", in_turn.empty() ? "" : "; in turn ", fmt::join(in_turn, ", "),
                     meanwhile.empty() ? "" : "; meanwhile ", fmt::join(meanwhile, "; "));
}

void Endpoint::fail_deadline(Task& task, std::chrono::nanoseconds waited) {
  fail(fmt::format("{} timed out after {} ms on rank {}; waiting for {}{}", task.describe(),
                   std::chrono::round<std::chrono::milliseconds>(waited).count(), world_rank(rank_),
                   describe_awaited(task), describe_others(task)));
}

}  // namespace espalier::detail::host
