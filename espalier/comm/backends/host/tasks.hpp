// SPDX-License-Identifier: Apache-2.0
// Private: the operations of the host backend as state machines.
//
// ExchangeTask      moves bytes between fixed places: broadcast, all_gather(_v), gather, scatter, all_to_all, barrier,
// and
//                     what the others send to the root of a reduce
//   RootReduceTask    the root of a reduce, in pieces as they come
//   DirectReduceTask  small all_reduce: everyone sends everything to everyone
//   ReduceTask        large all_reduce and reduce_scatter, in rounds: each member reduces its slice of the round
//   SendTask, RecvTask
//
// What lies in this rank's buffers is not copied but lent: by the ExchangeTask in parts that the others copy from, by
// the ReduceTask as a whole, from which the others read their slices and, in an all_reduce, to which they write the
// results. Every member decides for itself. Then a task is done when all have given back what it lent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "espalier/comm/backends/host/arena.hpp"
#include "espalier/comm/backends/host/task.hpp"

namespace espalier::detail::host {

// Payload bytes that one block carries in collectives: small enough that what one rank writes is still in cache when
// the next one reads it (twice as much makes 64 MiB among 4 ranks half as slow again).
inline constexpr std::size_t kChunkBytes = 128 * 1024;
// The same for sends, which should fit into a ring whole.
inline constexpr std::size_t kSendChunkBytes = 1024 * 1024;
// Up to here an all_reduce is exchanged directly: bytes received by a member.
inline constexpr std::size_t kDirectReduceBytes = 64 * 1024;
// Less is copied rather than lent: it costs little, and nobody has to wait until it is given back.
inline constexpr std::size_t kLeastLentBytes = 32 * 1024;
// What is lent at a time by an ExchangeTask; a receiver copies as much in one go.
inline constexpr std::size_t kLentPartBytes = 16 * 1024 * 1024;

class ExchangeTask final : public Task {
 public:
  // The same bytes for each of these world ranks.
  struct Outgoing {
    const char* data = nullptr;
    std::size_t bytes = 0;
    std::optional<std::uint64_t> place = {};  // of the data in this rank's buffers: it is lent
    std::vector<std::int32_t> to = {};
    std::size_t sent = 0;
    bool complete = false;
  };
  struct Incoming {
    char* data = nullptr;
    std::size_t bytes = 0;
    bool expected = false;
    std::size_t received = 0;
  };

  // `incoming` has an entry for each member. `tensors` are kept alive.
  ExchangeTask(Space& space, const Call& call, std::vector<Outgoing> outgoing, std::vector<Incoming> incoming,
               std::vector<at::Tensor> tensors);

  bool advance(Endpoint& endpoint) override;
  void arrive(Endpoint& endpoint, Message* message) override;
  bool owes() const override { return streams_open_ > 0 || !loans_.empty(); }
  std::uint32_t messages_missing() const override { return owes() ? 0 : static_cast<std::uint32_t>(members_open_); }
  std::vector<std::int32_t> awaited() const override;

 private:
  bool advance_stream(Endpoint& endpoint, Outgoing& stream);
  bool lend_part(Endpoint& endpoint, Outgoing& stream);

  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<at::Tensor> tensors_;
  std::size_t streams_open_;
  std::int64_t members_open_ = 0;
  std::vector<Loan> loans_;
  std::vector<Arena::Room> unread_;  // blocks of mine that somebody still has to read, oldest first
};

class DirectReduceTask final : public Task {
 public:
  DirectReduceTask(Space& space, const Call& call, at::Tensor tensor);

  bool advance(Endpoint& endpoint) override;
  void arrive(Endpoint& endpoint, Message* message) override;
  bool owes() const override { return !published_; }
  std::uint32_t messages_missing() const override { return owes() ? 0 : static_cast<std::uint32_t>(missing_); }
  std::vector<std::int32_t> awaited() const override;

 private:
  at::Tensor tensor_;
  char* const data_;
  const std::size_t bytes_;
  bool published_ = false;
  std::vector<Message*> contributions_;  // by member; null for mine and for those that have not come
  std::int32_t missing_;
};

class RootReduceTask final : public Task {
 public:
  RootReduceTask(Space& space, const Call& call, at::Tensor tensor);

  bool advance(Endpoint& endpoint) override;
  void arrive(Endpoint& endpoint, Message* message) override;
  bool owes() const override { return false; }
  std::vector<std::int32_t> awaited() const override;

 private:
  at::Tensor tensor_;
  char* const data_;
  const std::size_t bytes_;
  std::size_t reduced_ = 0;          // bytes
  std::vector<MessageQueue> parts_;  // by member, in order
  std::vector<std::size_t> taken_;   // by member: bytes of its first part that are reduced
  std::vector<const void*> sources_;
};

class ReduceTask final : public Task {
 public:
  // all_reduce: `input` and `output` are the same tensor. reduce_scatter: input is size times the output. `place` is
  // that of the input in this rank's buffers.
  ReduceTask(Space& space, const Call& call, at::Tensor output, at::Tensor input, std::optional<std::uint64_t> place);

  bool advance(Endpoint& endpoint) override;
  void arrive(Endpoint& endpoint, Message* message) override;
  bool owes() const override { return (gathers() ? reduced_ : scattered_) < rounds_ || loan_.has_value(); }
  std::vector<std::int32_t> awaited() const override;

 private:
  struct Range {
    std::int64_t begin;  // in elements
    std::int64_t count;
  };

  bool gathers() const { return call.kind == CallKind::all_reduce; }
  // The slice of the input that `member` reduces in a round.
  Range slice(std::int64_t round, std::int32_t member) const;
  bool lend(Endpoint& endpoint);
  bool scatter(Endpoint& endpoint);
  bool reduce(Endpoint& endpoint);
  bool round_arrived() const;

  at::Tensor output_;
  at::Tensor input_;
  char* const output_data_;
  const char* const input_data_;
  const std::size_t element_bytes_;
  const std::int64_t count_;        // elements cut into rounds: all of them, or of the output
  const std::int64_t round_elems_;  // of count_, in one round
  const std::int64_t rounds_;
  const std::optional<std::uint64_t> place_;
  std::optional<Loan> loan_;      // of the input
  std::int64_t scattered_ = 0;    // rounds of which I have sent all slices
  std::size_t scattered_to_ = 0;  // and of the next one, to so many of the others
  std::int64_t reduced_ = 0;      // rounds in which my slice is done
  std::int64_t gathers_missing_;
  std::vector<MessageQueue> slices_;    // by member, rounds in order; or its whole input, lent
  std::vector<std::int64_t> gathered_;  // by member, rounds
  std::vector<std::int32_t> copiers_;   // others whose output cannot be written from here
  std::vector<const void*> sources_;
  std::vector<void*> outputs_;  // besides mine
};

class SendTask final : public Task {
 public:
  SendTask(Space& space, const Call& call, at::Tensor tensor, std::int32_t to, std::int64_t tag);

  bool advance(Endpoint& endpoint) override;
  void arrive(Endpoint&, Message*) override {}
  void keep(Endpoint& endpoint) override;
  void retire(Endpoint& endpoint) override;
  bool owes() const override { return !complete_; }
  std::vector<std::int32_t> awaited() const override { return {peer}; }

 private:
  at::Tensor tensor_;
  const char* data_;
  const std::size_t bytes_;
  std::size_t sent_ = 0;
  bool complete_ = false;
  std::unique_ptr<char[]> copy_;  // of what did not fit into the arena
  std::size_t copy_bytes_ = 0;
};

class RecvTask final : public Task {
 public:
  RecvTask(Space& space, const Call& call, at::Tensor tensor, std::int32_t from, std::int64_t tag);

  bool advance(Endpoint& endpoint) override;
  void arrive(Endpoint&, Message*) override {}
  void retire(Endpoint& endpoint) override;
  bool owes() const override { return false; }
  std::vector<std::int32_t> awaited() const override { return {peer}; }

 private:
  at::Tensor tensor_;
  char* const data_;
  const std::size_t bytes_;
  std::size_t received_ = 0;
};

}  // namespace espalier::detail::host
