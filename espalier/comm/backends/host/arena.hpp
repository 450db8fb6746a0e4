// SPDX-License-Identifier: Apache-2.0
// Private: hands out blocks of one rank's payload arena. The bookkeeping is local to that rank; only the reader counts
// are shared. The lowest fitting gap is taken, so that small worlds keep using the same warm memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "espalier/comm/backends/host/segment.hpp"

namespace espalier::detail::host {

class Arena {
 public:
  // One allocation. Offsets are used again, serial numbers are not.
  struct Room {
    std::uint64_t offset = 0;  // of the payload; 0: none
    std::uint64_t serial = 0;
  };

  Arena(const Segment& segment, std::int64_t rank) : segment_(segment), rank_(rank) {}

  // `bytes` payload bytes that `readers` ranks must release; offset 0: no room now.
  Room allocate(std::size_t bytes, std::uint32_t readers);
  bool released(const Room& room) const;
  char* data(std::uint64_t offset) const { return segment_.arena(rank_) + offset; }
  // The most that one block can hold.
  std::size_t capacity() const { return static_cast<std::size_t>(segment_.arena_bytes()) - sizeof(BlockHeader); }

 private:
  struct Block {
    std::uint64_t begin;  // of its header
    std::uint64_t end;
    std::uint64_t serial;
  };

  bool unread(const Block& block) const;

  const Segment& segment_;
  const std::int64_t rank_;
  std::vector<Block> blocks_;  // in use, ascending
  std::uint64_t next_serial_ = 1;
};

// Something in this rank's buffers that others use until each has returned it. The block is what they do so by.
struct Loan {
  Arena::Room room;
  Lent lent = Lent::to_read;
  const std::atomic<std::uint8_t>* returned = nullptr;  // by world rank; set for those to whom it was not lent

  bool returned_by(std::int32_t rank) const { return returned[rank].load(std::memory_order_acquire) != 0; }
};

}  // namespace espalier::detail::host
