// SPDX-License-Identifier: Apache-2.0
// Private: an operation under way, as a small state machine that never waits, and the space of a group it runs in.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/comm/backends/host/segment.hpp"

namespace espalier::detail::host {

class Endpoint;
class Task;

// A message taken from a ring. Owned by the endpoint; given back with Endpoint::release.
struct Message {
  Descriptor descriptor;
  std::int32_t source = 0;  // world rank
  std::int32_t member = 0;  // the same in the group
  const char* payload = nullptr;
  std::unique_ptr<char[]> copy;      // where the payload was moved to when its sender ran out of room
  Message* next = nullptr;           // in a queue
  Message* previous_held = nullptr;  // among those that hold a block of the source's arena
  Message* next_held = nullptr;
  bool holds_block = false;
};

class MessageQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  Message* front() const { return first_; }
  void push(Message* message) {
    message->next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = message;
    last_ = message;
  }
  Message* pop() {
    Message* message = first_;
    first_ = message->next;
    return message;
  }

 private:
  Message* first_ = nullptr;
  Message* last_ = nullptr;
};

// Messages between this rank and one peer under one tag.
struct Channel {
  MessageQueue arrived;
  std::vector<Task*> senders;    // posted and not wholly in shared memory, oldest first
  std::vector<Task*> receivers;  // posted and not complete, oldest first
  bool idle() const { return arrived.empty() && senders.empty() && receivers.empty(); }
};

// One communication space on one rank.
struct Space {
  static constexpr std::uint64_t kRecentCalls = 64;

  std::uint64_t context = 0;
  std::string name;
  std::vector<std::int32_t> members;   // ranks of the segment
  std::vector<std::int64_t> shown;     // the same in messages: world ranks
  std::vector<std::int32_t> index_of;  // rank -> group rank, -1
  std::vector<std::int32_t> others;    // ranks of the other members, beginning after this rank
  std::int32_t me = 0;                 // group rank
  std::size_t largest_block = 0;       // bytes one message may put into an arena; the same on all ranks

  std::uint64_t next_sequence = 0;                                    // of collectives
  std::uint64_t next_message = 0;                                     // of sends and receives
  std::array<Call, kRecentCalls> recent;                              // what collective s was, at s % kRecentCalls
  std::vector<Task*> running;                                         // collectives
  std::unordered_map<std::uint64_t, MessageQueue> early;              // by sequence: collectives not posted here yet
  std::map<std::pair<std::int32_t, std::int64_t>, Channel> channels;  // by (group rank, tag)

  std::int32_t size() const { return static_cast<std::int32_t>(members.size()); }
  std::string describe() const;  // "group 'data' [0,2]"
};

class Task {
 public:
  Task(Space& the_space, const Call& the_call) : space(the_space), call(the_call) {}
  virtual ~Task() = default;

  // Does what can be done now; true when all is done. Stays due when it found no room.
  virtual bool advance(Endpoint& endpoint) = 0;
  // A message of this operation (collectives only).
  virtual void arrive(Endpoint& endpoint, Message* message) = 0;
  // Called once after posting when it is not done yet.
  virtual void keep(Endpoint&) {}
  // Called when done.
  virtual void retire(Endpoint&) {}
  // Whether others may still need something of it that is not in shared memory yet.
  virtual bool owes() const = 0;
  // It has nothing to do, and cannot be done, before so many more messages have come. 0: not known.
  virtual std::uint32_t messages_missing() const { return 0; }
  // Group ranks without whom it cannot go on.
  virtual std::vector<std::int32_t> awaited() const = 0;

  bool point_to_point() const { return call.kind == CallKind::send || call.kind == CallKind::recv; }
  std::string describe() const;  // "all_reduce(sum, float32 x 8) #3 of group 'data' [0,2]"

  Space& space;
  const Call call;
  std::uint64_t sequence = 0;
  std::int32_t peer = 0;  // point to point: group rank and tag
  std::int64_t tag = 0;
  bool due = true;  // worth advancing
  bool finished = false;
  std::uint64_t history_number = 0;

 protected:
  // Identifies this operation; phase, part and sizes are the caller's.
  Descriptor descriptor() const;
};

}  // namespace espalier::detail::host
