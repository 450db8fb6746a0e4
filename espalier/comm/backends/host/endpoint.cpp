// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/host/endpoint.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <thread>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/host/postmortem.hpp"

namespace espalier::detail::host {
namespace {

constexpr int kMostPauses = 1000;  // of a spin, about 50 us; only when every rank has a core of its own
constexpr int kYields = 40;
constexpr auto kTick = std::chrono::milliseconds(10);  // how often a waiting rank looks whether its peers live

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

std::int64_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
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
      buffers_(std::make_shared<Buffers>(segment_, rank)),
      held_(static_cast<std::size_t>(num_ranks_), nullptr),
      pidfds_(static_cast<std::size_t>(num_ranks_), -1) {
  segment_->populate(rank);
  attach();
  if (!is_thread_) watch_peers();
}

void Endpoint::attach() {
  auto absent = static_cast<std::uint32_t>(RankStatus::absent);
  const std::int32_t pid = ::getpid();
  std::int32_t nobody = 0;
  if (!mine_.pid.compare_exchange_strong(nobody, pid)) {
    throw ConfigError(fmt::format("host backend: rank {} was started twice: process {} came first, process {} is the second; "
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
  auto attached = static_cast<std::uint32_t>(RankStatus::attached);
  auto closing = static_cast<std::uint32_t>(RankStatus::closing);
  if (mine_.status.compare_exchange_strong(attached, closing)) {
    ring_all();
    if (!failure_ && std::uncaught_exceptions() == 0) hand_over(lock);
  }
  if (!failure_) failure_ = fmt::format("rank {} has closed this world; nothing can be called on it any more", world_rank(rank_));
  release_all();
  mine_.status.compare_exchange_strong(closing, static_cast<std::uint32_t>(RankStatus::closed));  // from here on it touches no block
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
      report_lost(*task, fmt::format("not taken within {} ms by {}", options_.timeout.count(), describe_awaited(*task)));
    }
  } catch (const std::exception& error) {  // the world was poisoned meanwhile
    for (const Task* task : owing) report_lost(*task, error.what());
  }
}

void Endpoint::report_lost(const Task& task, std::string_view why) const {
  Log(options_.log, fmt::format("[rank {}] ", world_rank(rank_)))
      .warning(fmt::format("host backend: the world was closed before {} was handed over, and it is lost: {}", task.describe(),
                           why));
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
  PastCall past{.call = task->call, .context = space.context, .sequence = task->sequence, .posted_ns = coarse_now_ns(), .group = {}, .during = during_};
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
      fail(fmt::format("{}: {} has left: it closed its world before this was sent", task->describe(), describe_rank(to)));
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
  if (!task->finished) task->keep(*this);
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
      endpoint.waited_ns_.fetch_add((Clock::now() - since) / std::chrono::nanoseconds(1), std::memory_order_relaxed);
      if (shown_since != 0 && !endpoint.failure_) endpoint.mine_.history.waits_no_more();
    }
  } waiting{*this};

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

bool Endpoint::is_busy() {
  const std::lock_guard lock(mutex_);
  return !tasks_.empty();
}

void Endpoint::serve(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  for (Patience patience{.looks = kYields};; after_look(patience, lock, until)) {
    if (closed_ || failure_) return;
    before_look(patience, nullptr);
    progress(nullptr);
    if (tasks_.empty() || Clock::now() >= until) return;
  }
}

std::string Endpoint::describe_wait(const Task& task) {
  const std::lock_guard lock(mutex_);
  return fmt::format("waiting for {}{}", describe_awaited(task), describe_others(task));
}

bool Endpoint::Patience::sleeps() const { return looks >= pauses + kYields; }

// Whoever has something for this rank from here on is seen by the look, or finds `asleep` set and counts it down or moves
// the bell. A rank that has nothing else to do is woken once, by the last message of those it waits for.
void Endpoint::before_look(Patience& patience, const Task* awaited) {
  if (!patience.sleeps()) return;
  patience.bell = mine_.bell.load(std::memory_order_seq_cst);
  patience.taken = taken_;
  const bool nothing_else = awaited != nullptr && tasks_.size() == 1 && sleepers_ == 0;
  mine_.asleep.store(nothing_else ? std::max(1u, awaited->messages_missing()) : 1u, std::memory_order_seq_cst);
}

void Endpoint::after_look(Patience& patience, std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  if (patience.sleeps() && patience.taken != taken_) return;  // what was taken is no longer counted down: look again first
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

// ---- progress ----

void Endpoint::progress(const Task* on_behalf) {
  if (failure_) throw CommError(*failure_);
  drain();
  evict_for_starved();
  advance_tasks();
  if (on_behalf == nullptr || !on_behalf->finished) check_failed(on_behalf);  // what has arrived counts
}

void Endpoint::drain() {
  for (std::int64_t source = 0; source < num_ranks_; ++source) {
    if (source == rank_) continue;
    Ring& ring = segment_->ring(source, rank_);
    std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
    const std::uint64_t head = ring.head.load(std::memory_order_seq_cst);
    if (tail == head) continue;
    MessageQueue taken;
    for (; tail != head; ++tail) {
      const Descriptor& slot = ring.descriptors[tail % kRingSlots];
      Message* message = new_message();
      message->source = static_cast<std::int32_t>(source);
      const std::size_t used = offsetof(Descriptor, inline_data) + (slot.block == 0 ? slot.bytes : 0);
      std::memcpy(static_cast<void*>(&message->descriptor), &slot, used);
      if (slot.block == 0) {
        message->payload = message->descriptor.inline_data.data();
      } else {
        message->payload = slot.lent == Lent::no ? segment_->arena(source) + slot.block : segment_->buffers(source) + slot.place;
        message->holds_block = true;
        Message*& first = held_[static_cast<std::size_t>(source)];
        message->previous_held = nullptr;
        message->next_held = first;
        if (first != nullptr) first->previous_held = message;
        first = message;
      }
      taken.push(message);
      ++taken_;
    }
    ring.tail.store(tail, std::memory_order_seq_cst);
    if (segment_->slot(source).starved.load(std::memory_order_seq_cst) != 0) this->ring(source);
    while (!taken.empty()) route(taken.pop());
  }
}

void Endpoint::route(Message* message) {
  const auto found = spaces_.find(message->descriptor.context);
  if (found == spaces_.end()) {
    orphans_[message->descriptor.context].push(message);
  } else {
    deliver(*found->second, message);
  }
}

void Endpoint::deliver(Space& space, Message* message) {
  const Descriptor& descriptor = message->descriptor;
  message->member = space.index_of[static_cast<std::size_t>(message->source)];
  ESPALIER_CHECK(message->member >= 0, "rank {} sent to {}, of which it is no member", message->source, space.describe());
  if (descriptor.call.kind == CallKind::send) {
    Channel& channel = space.channels[{message->member, descriptor.tag}];
    channel.arrived.push(message);
    if (!channel.receivers.empty()) channel.receivers.front()->due = true;
    return;
  }
  if (descriptor.sequence >= space.next_sequence) {
    space.early[descriptor.sequence].push(message);
    return;
  }
  const Call& mine = space.recent[descriptor.sequence % Space::kRecentCalls];
  if (space.next_sequence - descriptor.sequence <= Space::kRecentCalls && mine != descriptor.call) {
    fail_different(space, descriptor.sequence, mine, descriptor.call, message->source);
  }
  for (Task* task : space.running) {
    if (task->sequence != descriptor.sequence) continue;
    task->due = true;
    task->arrive(*this, message);
    return;
  }
  ESPALIER_CHECK(false, "{} sent part {} of operation #{} of {}, which was finished here", describe_rank(message->source),
                 descriptor.part, descriptor.sequence, space.describe());
}

void Endpoint::advance_tasks() {
  // A second pass after telling the others that room is wanted: they may have made some in between.
  for (bool again = true; again;) {
    wants_ = Starved::no;
    bool finished_any = false;
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      Task& task = *tasks_[i];
      if (!task.due) continue;
      const Starved wanted_before = std::exchange(wants_, Starved::no);
      task.due = false;
      if (task.advance(*this)) {
        task.finished = true;
        mine_.history.finished(task.history_number);
        finished_any = true;
        if (task.point_to_point()) {
          task.retire(*this);
        } else {
          std::erase(task.space.running, &task);
        }
      } else if (wants_ != Starved::no) {
        task.due = true;
      }
      wants_ = std::max(wants_, wanted_before);
    }
    if (finished_any) {
      std::erase_if(tasks_, [](const std::shared_ptr<Task>& task) { return task->finished; });
      if (sleepers_ > 0) ring(rank_);  // another thread of this rank may wait for one of these
    }
    again = wants_ > starved_;
    if (wants_ != starved_) show_starved(wants_);
  }
}

void Endpoint::show_starved(Starved starved) {
  starved_ = starved;
  mine_.starved.store(static_cast<std::uint32_t>(starved), std::memory_order_seq_cst);
  if (starved == Starved::out_of_space) ring_all();
}

void Endpoint::evict_for_starved() {
  for (std::int64_t source = 0; source < num_ranks_; ++source) {
    Message* message = held_[static_cast<std::size_t>(source)];
    if (message == nullptr) continue;
    RankSlot& slot = segment_->slot(source);
    if (slot.starved.load(std::memory_order_acquire) != static_cast<std::uint32_t>(Starved::out_of_space)) continue;
    bool evicted = false;
    for (Message* next = nullptr; message != nullptr; message = next) {
      next = message->next_held;
      if (message->descriptor.lent != Lent::no) continue;  // holds next to nothing
      const std::size_t bytes = message->descriptor.bytes;
      message->copy = std::make_unique_for_overwrite<char[]>(bytes);
      std::memcpy(message->copy.get(), message->payload, bytes);
      message->payload = message->copy.get();
      copies_bytes_ += static_cast<std::int64_t>(bytes);
      unhold(message);
      give_back(source, message->descriptor.block, Lent::no, rank_);
      evicted = true;
    }
    if (evicted) ring(source);
  }
  if (copies_bytes_ > options_.copies_limit_bytes) {
    fail(fmt::format("rank {}: {} MiB of messages lie unreceived outside shared memory, the limit is {} MiB; receive what "
                     "is sent, or send less ahead",
                     world_rank(rank_), copies_bytes_ >> 20, options_.copies_limit_bytes >> 20));
  }
}

// ---- for tasks ----

bool Endpoint::reserve(std::span<const std::int32_t> to, std::size_t bytes, Parcel& parcel) {
  if (!rings_have_room(to)) return false;
  parcel.bytes = bytes;
  if (bytes <= kInlineBytes) {
    parcel.room = {};
    parcel.data = inline_scratch_.data();
    return true;
  }
  parcel.room = arena_.allocate(bytes, static_cast<std::uint32_t>(to.size()));
  if (parcel.room.offset == 0) {
    wants_ = Starved::out_of_space;
    return false;
  }
  parcel.data = arena_.data(parcel.room.offset);
  return true;
}

void Endpoint::dispatch(std::span<const std::int32_t> to, Descriptor& descriptor, const Parcel& parcel) {
  descriptor.block = parcel.room.offset;
  descriptor.bytes = static_cast<std::uint32_t>(parcel.bytes);
  push(to, descriptor, parcel.data);
  count_sent(parcel.bytes * to.size());
}

std::optional<Loan> Endpoint::lend(std::span<const std::int32_t> to, Descriptor& descriptor) {
  if (!rings_have_room(to)) return std::nullopt;
  Loan loan{.room = arena_.allocate(static_cast<std::size_t>(num_ranks_), static_cast<std::uint32_t>(to.size())), .lent = descriptor.lent};
  descriptor.block = loan.room.offset;
  if (descriptor.block == 0) {
    wants_ = Starved::out_of_space;
    return std::nullopt;
  }
  loan.returned = &segment_->returned(rank_, descriptor.block, 0);
  for (std::int64_t rank = 0; rank < num_ranks_; ++rank) {
    const bool borrows = std::ranges::find(to, rank) != to.end();
    segment_->returned(rank_, descriptor.block, rank).store(borrows ? 0 : 1, std::memory_order_relaxed);
  }
  push(to, descriptor, nullptr);
  count_sent(descriptor.bytes * to.size());
  return loan;
}

bool Endpoint::returned(const Loan& loan) {
  if (arena_.released(loan.room)) return true;
  if (loan.lent == Lent::to_read) {  // who has left does not read any more
    for (std::int32_t rank = 0; rank < num_ranks_; ++rank) {
      if (loan.returned_by(rank) || status(rank) != RankStatus::closed) continue;
      if (give_back(rank_, loan.room.offset, loan.lent, rank)) return true;
    }
  }
  wants_ = std::max(wants_, Starved::waits_for_release);
  return false;
}

// Tells the owner of a block that a reader is through with it; whether it was the last one.
bool Endpoint::give_back(std::int64_t owner, std::uint64_t block, Lent lent, std::int64_t reader) {
  if (lent != Lent::no && segment_->returned(owner, block, reader).exchange(1, std::memory_order_seq_cst) != 0) return false;
  return segment_->block(owner, block).readers.fetch_sub(1, std::memory_order_seq_cst) == 1;
}

bool Endpoint::rings_have_room(std::span<const std::int32_t> to) {
  for (const std::int32_t rank : to) {
    const Ring& ring = segment_->ring(rank_, rank);
    if (ring.head.load(std::memory_order_relaxed) - ring.tail.load(std::memory_order_seq_cst) == kRingSlots) {
      wants_ = Starved::out_of_space;
      return false;
    }
  }
  return true;
}

void Endpoint::push(std::span<const std::int32_t> to, const Descriptor& descriptor, const char* inline_data) {
  for (const std::int32_t rank : to) {
    Ring& ring = segment_->ring(rank_, rank);
    const std::uint64_t head = ring.head.load(std::memory_order_relaxed);
    Descriptor& slot = ring.descriptors[head % kRingSlots];
    std::memcpy(static_cast<void*>(&slot), &descriptor, offsetof(Descriptor, inline_data));
    if (descriptor.block == 0) std::memcpy(slot.inline_data.data(), inline_data, descriptor.bytes);
    ring.head.store(head + 1, std::memory_order_seq_cst);
    ring_for_message(rank);
  }
}

bool Endpoint::released(const Arena::Room& room) {
  if (arena_.released(room)) return true;
  wants_ = std::max(wants_, Starved::waits_for_release);
  return false;
}

void Endpoint::release(Message* message) {
  if (message->holds_block) {
    unhold(message);
    const Descriptor& descriptor = message->descriptor;
    const bool last = give_back(message->source, descriptor.block, descriptor.lent, rank_);
    if (last && segment_->slot(message->source).starved.load(std::memory_order_seq_cst) != 0) ring(message->source);
  }
  if (message->copy != nullptr) {
    copies_bytes_ -= message->descriptor.bytes;
    message->copy.reset();
  }
  free_messages_.push_back(message);
}

void Endpoint::unhold(Message* message) {
  Message*& first = held_[static_cast<std::size_t>(message->source)];
  (message->previous_held == nullptr ? first : message->previous_held->next_held) = message->next_held;
  if (message->next_held != nullptr) message->next_held->previous_held = message->previous_held;
  message->holds_block = false;
}

void Endpoint::add_copies(std::int64_t bytes, const Task& task) {
  copies_bytes_ += bytes;
  if (copies_bytes_ > options_.copies_limit_bytes) {
    fail(fmt::format("{}: {} MiB of sent tensors wait outside shared memory, the limit is {} MiB; wait for the sends, or "
                     "send less ahead",
                     task.describe(), copies_bytes_ >> 20, options_.copies_limit_bytes >> 20));
  }
}

Message* Endpoint::new_message() {
  if (free_messages_.empty()) {
    messages_.push_back(std::make_unique_for_overwrite<Message>());
    return messages_.back().get();
  }
  Message* message = free_messages_.back();
  free_messages_.pop_back();
  return message;
}

void Endpoint::ring(std::int64_t rank) {
  RankSlot& slot = segment_->slot(rank);
  if (slot.asleep.load(std::memory_order_seq_cst) != 0 && slot.asleep.exchange(0) != 0) wake(slot);
}

void Endpoint::ring_for_message(std::int64_t rank) {
  RankSlot& slot = segment_->slot(rank);
  std::uint32_t until = slot.asleep.load(std::memory_order_seq_cst);
  while (until != 0 && !slot.asleep.compare_exchange_weak(until, until - 1)) {
  }
  if (until == 1) wake(slot);
}

void Endpoint::wake(RankSlot& slot) {
  slot.bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(slot.bell);
}

void Endpoint::ring_all() {
  for (std::int64_t rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_) ring(rank);
  }
}

// ---- failure ----

RankStatus Endpoint::status(std::int64_t rank) const {
  return static_cast<RankStatus>(segment_->slot(rank).status.load(std::memory_order_acquire));
}

std::string Endpoint::describe_rank(std::int64_t rank) const {
  const RankSlot& slot = segment_->slot(rank);
  return fmt::format("rank {} ({}pid {}{}{})", world_rank(rank), slot.is_thread.load() != 0 ? "thread of " : "", slot.pid.load(),
                     options_.names.host.empty() ? "" : " on ", options_.names.host);
}

std::string Endpoint::describe_last_call(std::int64_t rank) const {
  const PastCall last = segment_->slot(rank).history.last_call();
  if (last.call.kind == CallKind::none) return "it has called nothing yet";
  const auto found = spaces_.find(last.context);
  std::string text = fmt::format("its last call is {} #{} of {}", to_string(last.call), last.sequence,
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
    log.info(fmt::format("host backend: what every rank was doing is in {0}; read it with: espalier postmortem {0}", options_.postmortem));
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

void Endpoint::fail_different(const Space& space, std::uint64_t sequence, const Call& mine, const Call& theirs, std::int64_t rank) {
  fail(fmt::format("{}: the ranks call different operations: operation #{} is {} on {} but {} on {}; all members must call the same "
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
    fail(fmt::format("{} on rank {}: {} has left: it closed its world before taking part; {}", task.describe(), world_rank(rank_),
                     describe_rank(rank), describe_last_call(rank)));
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
  return fmt::format("{}{}{}{}", in_turn.empty() ? "" : "; in turn ", fmt::join(in_turn, ", "), meanwhile.empty() ? "" : "; meanwhile ",
                     fmt::join(meanwhile, "; "));
}

void Endpoint::fail_deadline(Task& task, std::chrono::nanoseconds waited) {
  fail(fmt::format("{} timed out after {} ms on rank {}; waiting for {}{}", task.describe(),
                   std::chrono::round<std::chrono::milliseconds>(waited).count(), world_rank(rank_), describe_awaited(task), describe_others(task)));
}

}  // namespace espalier::detail::host
