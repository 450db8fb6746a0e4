// SPDX-License-Identifier: Apache-2.0
// What an endpoint does in every look: takes in what came, makes room for who has none, and moves what is under way;
// and what the operations under way ask of it.
#include "espalier/comm/backends/host/endpoint.hpp"

#include <algorithm>
#include <cstring>

#include "espalier/base/check.hpp"

namespace espalier::detail::host {

void Endpoint::progress(const Task* on_behalf) {
  if (failure_) throw CommError(*failure_);
  look();
  ended_.clear();
  if (on_behalf == nullptr || !on_behalf->finished) check_failed(on_behalf);  // what has arrived counts
}

void Endpoint::look() {
  drain();
  evict_for_starved();
  advance_tasks();
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
        message->payload =
            slot.lent == Lent::no ? segment_->arena(source) + slot.block : segment_->buffers(source) + slot.place;
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
  ESPALIER_CHECK(message->member >= 0, "rank {} sent to {}, of which it is no member", message->source,
                 space.describe());
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
  ESPALIER_CHECK(false, "{} sent part {} of operation #{} of {}, which was finished here",
                 describe_rank(message->source), descriptor.part, descriptor.sequence, space.describe());
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
      for (std::shared_ptr<Task>& task : tasks_) {
        if (task->finished) ended_.push_back(std::move(task));
      }
      std::erase(tasks_, nullptr);
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
    fail(fmt::format(
        "rank {}: {} MiB of messages lie unreceived outside shared memory, the limit is {} MiB; receive what "
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
  Loan loan{.room = arena_.allocate(static_cast<std::size_t>(num_ranks_), static_cast<std::uint32_t>(to.size())),
            .lent = descriptor.lent};
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
  if (lent != Lent::no && segment_->returned(owner, block, reader).exchange(1, std::memory_order_seq_cst) != 0)
    return false;
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
    fail(fmt::format(
        "{}: {} MiB of sent tensors wait outside shared memory, the limit is {} MiB; wait for the sends, or "
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

}  // namespace espalier::detail::host
