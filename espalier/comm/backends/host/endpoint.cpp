// SPDX-License-Identifier: Apache-2.0
// Joining, leaving, posting and waiting.
#include "espalier/comm/backends/host/endpoint.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <thread>

#include "espalier/base/check.hpp"
#include "espalier/base/usable_cores.hpp"

namespace espalier::detail::host {
namespace {

constexpr int kMostPauses = 1000;  // of a spin, about 50 us; only when every rank has a core of its own

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

// ---- joining and leaving ----

Endpoint::Endpoint(std::shared_ptr<Segment> segment, std::int64_t rank, bool is_thread, const EndpointOptions& options)
    : segment_(std::move(segment)),
      rank_(rank),
      num_ranks_(segment_->num_ranks()),
      is_thread_(is_thread),
      options_(options),
      cores_for_all_(num_ranks_ <= usable_cores()),
      mine_(segment_->slot(rank)),
      arena_(*segment_, rank),
      buffers_(std::make_shared<Buffers>(segment_, rank, world_rank(rank))),
      held_(static_cast<std::size_t>(num_ranks_), nullptr),
      pidfds_(static_cast<std::size_t>(num_ranks_), -1) {
  segment_->populate(rank);
  attach();
  if (!is_thread_) watch_peers();
  start_thread();
}

void Endpoint::attach() {
  auto absent = static_cast<std::uint32_t>(RankStatus::absent);
  const std::int32_t pid = ::getpid();
  std::int32_t nobody = 0;
  if (!mine_.pid.compare_exchange_strong(nobody, pid)) {
    throw ConfigError(
        fmt::format("host backend: rank {} was started twice: process {} came first, process {} is the second; "
                    "give each process its own rank",
                    world_rank(rank_), nobody, pid));
  }
  mine_.is_thread.store(is_thread_ ? 1 : 0);
  mine_.status.compare_exchange_strong(absent, static_cast<std::uint32_t>(RankStatus::attached));
  auto& attached = segment_->header().attached;
  attached.fetch_add(1);
  futex_wake_all(attached);
  if (is_thread_) return;  // all ranks of this process are made before any of them runs
  const auto deadline = Clock::now() + options_.timeout;
  for (;;) {
    const std::uint32_t so_far = attached.load();
    if (so_far == static_cast<std::uint32_t>(num_ranks_)) return segment_->close_descriptor();
    if (Clock::now() >= deadline) {
      std::vector<std::int64_t> missing;
      for (std::int64_t peer = 0; peer < num_ranks_; ++peer) {
        if (status(peer) == RankStatus::absent) missing.push_back(world_rank(peer));
      }
      throw CommError(fmt::format("host backend: rank {} waited {} ms for all {} ranks; missing: {}", world_rank(rank_),
                                  options_.timeout.count(), num_ranks_, fmt::join(missing, ", ")));
    }
    futex_wait(attached, so_far, kTick);
  }
}

void Endpoint::watch_peers() {
  for (std::int64_t peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    const int pid = segment_->slot(peer).pid.load();
    const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    if (fd < 0 && errno == ESRCH) {
      if (status(peer) == RankStatus::attached) note_death(peer);
    } else if (fd < 0) {
      throw CommError(fmt::format("host backend: cannot watch {}: pidfd_open failed: {}; Linux 5.3 or newer is needed",
                                  describe_rank(peer), std::strerror(errno)));
    }
    pidfds_[static_cast<std::size_t>(peer)] = fd;
  }
}

Endpoint::~Endpoint() {
  close();
  for (const int fd : pidfds_) {
    if (fd >= 0) ::close(fd);
  }
}

void Endpoint::close() {
  std::unique_lock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  stop_thread(lock);
  auto attached = static_cast<std::uint32_t>(RankStatus::attached);
  auto closing = static_cast<std::uint32_t>(RankStatus::closing);
  if (mine_.status.compare_exchange_strong(attached, closing)) {
    ring_all();
    if (!failure_ && std::uncaught_exceptions() == 0) hand_over(lock);
  }
  if (!failure_)
    failure_ = fmt::format("rank {} has closed this world; nothing can be called on it any more", world_rank(rank_));
  release_all();
  mine_.status.compare_exchange_strong(
      closing, static_cast<std::uint32_t>(RankStatus::closed));  // from here on it touches no block
  ring_all();
}

void Endpoint::hand_over(std::unique_lock<std::mutex>& lock) {
  const auto deadline = Clock::now() + options_.timeout;
  std::vector<const Task*> owing, lost;
  const auto look = [&] {
    progress(nullptr);
    if (Clock::now() >= next_check_) note_deaths();
    owing.clear();
    for (const std::shared_ptr<Task>& task : tasks_) {
      if (!task->owes() || std::ranges::find(lost, task.get()) != lost.end()) continue;
      const std::vector<std::int32_t> without = gone(*task);
      if (without.empty()) {
        owing.push_back(task.get());
      } else {
        lost.push_back(task.get());
        report_lost(*task, fmt::format("{} has left without taking part",
                                       describe_rank(task->space.members[static_cast<std::size_t>(without.front())])));
      }
    }
  };
  try {
    for (Patience patience;; after_look(patience, lock, deadline)) {
      before_look(patience, nullptr);
      look();
      if (owing.empty()) return;
      if (Clock::now() >= deadline) break;
    }
    for (const Task* task : owing) {
      report_lost(*task,
                  fmt::format("not taken within {} ms by {}", options_.timeout.count(), describe_awaited(*task)));
    }
  } catch (const std::exception& error) {  // the world was poisoned meanwhile
    for (const Task* task : owing) report_lost(*task, error.what());
  }
}

void Endpoint::report_lost(const Task& task, std::string_view why) const {
  Log(options_.log, fmt::format("[rank {}] ", world_rank(rank_)))
      .warning(fmt::format("host backend: the world was closed before {} was handed over, and it is lost: {}",
                           task.describe(), why));
}

// What others wait for to be read. What they expect to be written stays lent, so that they do not take it for done.
void Endpoint::release_all() {
  for (Message* message : held_) {
    for (Message* next = nullptr; message != nullptr; message = next) {
      next = message->next_held;
      if (message->descriptor.lent != Lent::to_write) release(message);
    }
  }
  for (std::int64_t source = 0; source < num_ranks_; ++source) {
    if (source == rank_) continue;
    Ring& ring = segment_->ring(source, rank_);
    std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
    for (const std::uint64_t head = ring.head.load(std::memory_order_acquire); tail != head; ++tail) {
      const Descriptor& slot = ring.descriptors[tail % kRingSlots];
      if (slot.block != 0 && slot.lent != Lent::to_write) give_back(source, slot.block, slot.lent, rank_);
    }
    ring.tail.store(tail, std::memory_order_release);
  }
}

Space& Endpoint::space(std::span<const std::int64_t> members, std::string_view name, std::uint64_t context) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Space>& entry = spaces_[context];
  if (entry != nullptr) return *entry;
  entry = std::make_unique<Space>();
  Space& space = *entry;
  space.context = context;
  space.name = name;
  space.index_of.assign(static_cast<std::size_t>(num_ranks_), -1);
  for (const std::int64_t member : members) {
    space.index_of[static_cast<std::size_t>(member)] = space.size();
    space.members.push_back(static_cast<std::int32_t>(member));
    space.shown.push_back(world_rank(member));
  }
  space.me = space.index_of[static_cast<std::size_t>(rank_)];
  space.largest_block = arena_.capacity() / 4 / sizeof(double) * sizeof(double);  // whole elements
  for (std::int32_t i = 1; i < space.size(); ++i) {
    space.others.push_back(space.members[static_cast<std::size_t>((space.me + i) % space.size())]);
  }
  if (const auto found = orphans_.find(context); found != orphans_.end()) {
    MessageQueue queue = found->second;
    orphans_.erase(found);
    while (!queue.empty()) deliver(space, queue.pop());
  }
  return space;
}

// ---- posting, polling, waiting ----

void Endpoint::post(const std::shared_ptr<Task>& task) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw CommError(*failure_);
  Space& space = task->space;
  if (task->point_to_point()) {
    task->sequence = space.next_message++;
  } else {
    task->sequence = space.next_sequence++;
    space.recent[task->sequence % Space::kRecentCalls] = task->call;
  }
  PastCall past{.call = task->call,
                .context = space.context,
                .sequence = task->sequence,
                .posted_ns = coarse_now_ns(),
                .group = {},
                .during = during_};
  if (task->point_to_point()) past.peer = space.shown[static_cast<std::size_t>(task->peer)];
  past.group.set(space.name);
  task->history_number = mine_.history.posted(past);

  tasks_.push_back(task);
  if (sleepers_ > 0) mine_.asleep.store(1, std::memory_order_seq_cst);  // they now wait for this one's messages too
  if (task->point_to_point()) {
    Channel& channel = space.channels[{task->peer, task->tag}];
    (task->call.kind == CallKind::send ? channel.senders : channel.receivers).push_back(task.get());
    const std::int64_t to = space.members[static_cast<std::size_t>(task->peer)];
    if (task->call.kind == CallKind::send && has_left(*task, to)) {
      fail(fmt::format("{}: {} has left: it closed its world before this was sent", task->describe(),
                       describe_rank(to)));
    }
  } else {
    space.running.push_back(task.get());
    if (const auto found = space.early.find(task->sequence); found != space.early.end()) {
      MessageQueue queue = found->second;
      space.early.erase(found);
      while (!queue.empty()) deliver(space, queue.pop());
    }
  }
  progress(task.get());
  if (task->finished) return;
  task->keep(*this);
  attend();
}

bool Endpoint::poll(Task& task) {
  const std::lock_guard lock(mutex_);
  if (task.finished) return true;
  progress(&task);
  if (!task.finished && Clock::now() >= next_check_) check_peers(task);
  return task.finished;
}

void Endpoint::wait(Task& task, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (task.finished) return;
  struct Waiting {
    Endpoint& endpoint;
    const Clock::time_point since = Clock::now();
    std::int64_t shown_since = 0;  // 0: not shown to the others
    ~Waiting() {
      if (--endpoint.waiters_ == 0 && !endpoint.tasks_.empty()) endpoint.attend();
      endpoint.waited_ns_.fetch_add((Clock::now() - since) / std::chrono::nanoseconds(1), std::memory_order_relaxed);
      if (shown_since != 0 && !endpoint.failure_) endpoint.mine_.history.waits_no_more();
    }
  } waiting{*this};
  ++waiters_;

  for (Patience patience{.pauses = pauses_};;) {
    before_look(patience, &task);
    progress(&task);
    if (task.finished) {
      if (patience.sleeps() && sleepers_ == 0) mine_.asleep.store(0, std::memory_order_relaxed);
      if (cores_for_all_) adapt_spin(patience.looks);
      return;
    }
    if (!patience.spins()) {
      const auto now = Clock::now();
      if (now >= next_check_) {
        check_peers(task);
        if (task.finished) return;
        if (waiting.shown_since == 0) waiting.shown_since = coarse_now_ns();
        mine_.history.waits_for(waiting.shown_since, awaited_ranks(task));
      }
      if (now >= deadline) fail_deadline(task, now - waiting.since);
    }
    after_look(patience, lock, deadline);
  }
}

std::string Endpoint::failure() {
  const std::lock_guard lock(mutex_);
  if (closed_) return "";
  try {
    progress(nullptr);
    if (Clock::now() >= next_check_) note_deaths();
    check_failed(nullptr);
  } catch (const std::exception& error) {
    if (!failure_) return error.what();
  }
  return failure_.value_or("");
}

std::string Endpoint::describe_wait(const Task& task) {
  const std::lock_guard lock(mutex_);
  return fmt::format("waiting for {}{}", describe_awaited(task), describe_others(task));
}

bool Endpoint::Patience::sleeps() const { return looks >= pauses + kYields; }

// Whoever has something for this rank from here on is seen by the look, or finds `asleep` set and counts it down or
// moves the bell. A rank that has nothing else to do is woken once, by the last message of those it waits for.
void Endpoint::before_look(Patience& patience, const Task* awaited) {
  if (!patience.sleeps()) return;
  patience.bell = mine_.bell.load(std::memory_order_seq_cst);
  patience.taken = taken_;
  const bool nothing_else = awaited != nullptr && tasks_.size() == 1 && sleepers_ == 0;
  mine_.asleep.store(nothing_else ? std::max(1u, awaited->messages_missing()) : 1u, std::memory_order_seq_cst);
}

void Endpoint::after_look(Patience& patience, std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  if (patience.sleeps() && patience.taken != taken_)
    return;  // what was taken is no longer counted down: look again first
  const bool sleeps = patience.sleeps();
  if (sleeps) ++sleepers_;
  lock.unlock();
  if (sleeps) {
    const auto left = std::max(deadline - Clock::now(), Clock::duration::zero());
    futex_wait(mine_.bell, patience.bell,
               std::min<std::chrono::microseconds>(kTick, std::chrono::ceil<std::chrono::microseconds>(left)));
  } else if (patience.spins()) {
    pause();
  } else {
    ::sched_yield();
  }
  lock.lock();
  ++patience.looks;
  if (sleeps && --sleepers_ == 0) mine_.asleep.store(0, std::memory_order_relaxed);
}

// Spins longer while that is enough, and hardly at all when others keep the cores busy.
void Endpoint::adapt_spin(int rounds_needed) {
  if (rounds_needed < pauses_) {
    pauses_ = std::min(kMostPauses, 2 * pauses_);
  } else if (rounds_needed < pauses_ + kYields) {
    pauses_ = std::min(kMostPauses, pauses_ + 32);
  } else {
    pauses_ /= 2;
  }
}

at::Tensor Endpoint::buffer(at::IntArrayRef sizes, at::ScalarType dtype) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw CommError(*failure_);
  return buffers_->make(sizes, dtype);
}

void Endpoint::note(std::string_view during) {
  const std::lock_guard lock(mutex_);
  during_.set(during);
}

void Endpoint::abort(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = reason;
  publish_failure(reason);
}

std::int64_t Endpoint::num_unexpected_messages() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(messages_.size() - free_messages_.size());
}

}  // namespace espalier::detail::host
