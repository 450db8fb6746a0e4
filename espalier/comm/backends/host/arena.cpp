// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/host/arena.hpp"

#include <algorithm>

namespace espalier::detail::host {

bool Arena::unread(const Block& block) const {
  return segment_.block(rank_, block.begin + sizeof(BlockHeader)).readers.load(std::memory_order_seq_cst) != 0;
}

bool Arena::released(const Room& room) const {
  const auto found =
      std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) { return block.serial == room.serial; });
  return found == blocks_.end() || !unread(*found);
}

Arena::Room Arena::allocate(std::size_t bytes, std::uint32_t readers) {
  std::erase_if(blocks_, [&](const Block& block) { return !unread(block); });
  const std::uint64_t needed = (sizeof(BlockHeader) + bytes + kBlockAlign - 1) / kBlockAlign * kBlockAlign;
  std::uint64_t begin = 0;
  auto next = blocks_.begin();
  while (next != blocks_.end() && next->begin - begin < needed) {
    begin = next->end;
    ++next;
  }
  if (begin + needed > static_cast<std::uint64_t>(segment_.arena_bytes())) return {};
  blocks_.insert(next, Block{begin, begin + needed, next_serial_});
  const std::uint64_t offset = begin + sizeof(BlockHeader);
  segment_.block(rank_, offset).readers.store(readers, std::memory_order_relaxed);
  return {offset, next_serial_++};
}

}  // namespace espalier::detail::host
