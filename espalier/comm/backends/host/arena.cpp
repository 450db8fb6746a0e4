// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/host/arena.hpp"

namespace espalier::detail::host {

std::uint64_t Arena::allocate(std::size_t bytes, std::uint32_t readers) {
  std::erase_if(blocks_, [&](const Block& block) { return released(block.begin + sizeof(BlockHeader)); });
  const std::uint64_t needed = (sizeof(BlockHeader) + bytes + kBlockAlign - 1) / kBlockAlign * kBlockAlign;
  std::uint64_t begin = 0;
  auto next = blocks_.begin();
  while (next != blocks_.end() && next->begin - begin < needed) {
    begin = next->end;
    ++next;
  }
  if (begin + needed > static_cast<std::uint64_t>(segment_.arena_bytes())) return 0;
  blocks_.insert(next, Block{begin, begin + needed});
  const std::uint64_t offset = begin + sizeof(BlockHeader);
  segment_.block(rank_, offset).readers.store(readers, std::memory_order_relaxed);
  return offset;
}

}  // namespace espalier::detail::host
