// SPDX-License-Identifier: Apache-2.0
// Private: hands out blocks of one rank's payload arena. The bookkeeping is local to that rank; only the reader counts
// are shared. The lowest fitting gap is taken, so that small worlds keep using the same warm memory.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/comm/backends/host/segment.hpp"

namespace espalier::detail::host {

class Arena {
 public:
  Arena(const Segment& segment, std::int64_t rank) : segment_(segment), rank_(rank) {}

  // Offset of `bytes` payload bytes that `readers` ranks must release; 0: no room now.
  std::uint64_t allocate(std::size_t bytes, std::uint32_t readers);
  bool released(std::uint64_t offset) const {
    return segment_.block(rank_, offset).readers.load(std::memory_order_seq_cst) == 0;
  }
  char* data(std::uint64_t offset) const { return segment_.arena(rank_) + offset; }
  // The most that one block can hold.
  std::size_t capacity() const { return static_cast<std::size_t>(segment_.arena_bytes()) - sizeof(BlockHeader); }

 private:
  struct Block {
    std::uint64_t begin;  // of its header
    std::uint64_t end;
  };

  const Segment& segment_;
  const std::int64_t rank_;
  std::vector<Block> blocks_;  // in use, ascending
};

}  // namespace espalier::detail::host
