// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/host/buffers.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "espalier/base/check.hpp"

namespace espalier::detail::host {

Buffers::Buffers(std::shared_ptr<Segment> segment, std::int64_t rank, std::int64_t world_rank)
    : segment_(std::move(segment)), rank_(rank), world_rank_(world_rank) {}

at::Tensor Buffers::make(at::IntArrayRef sizes, at::ScalarType dtype) {
  ESPALIER_CHECK_CONFIG(std::ranges::all_of(sizes, [](std::int64_t size) { return size >= 0; }),
                        "host_buffer: sizes [{}]; expected 0 or more each", fmt::join(sizes, ","));
  auto bytes = static_cast<std::uint64_t>(c10::elementSize(dtype));
  bool overflows = false;
  for (const std::int64_t size : sizes)
    overflows |= __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes);
  ESPALIER_CHECK_CONFIG(!overflows, "host_buffer: sizes [{}] are more than can be counted", fmt::join(sizes, ","));
  if (bytes == 0) return at::empty(sizes, dtype);
  const std::uint64_t begin = take(bytes);
  return at::from_blob(
      segment_->buffers(rank_) + begin, sizes, [self = shared_from_this(), begin](void*) { self->give_back(begin); },
      at::TensorOptions(dtype));
}

std::optional<std::uint64_t> Buffers::place_of(const void* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(segment_->buffers(rank_)),
             at = reinterpret_cast<std::uintptr_t>(data);
  const auto limit = static_cast<std::uint64_t>(segment_->buffer_bytes());
  if (at < begin || bytes > limit || at - begin > limit - bytes) return std::nullopt;
  return at - begin;
}

std::uint64_t Buffers::take(std::uint64_t bytes) {
  const auto limit = static_cast<std::uint64_t>(segment_->buffer_bytes());
  const std::lock_guard lock(mutex_);
  std::uint64_t begin = 0, used = 0;
  auto next = blocks_.begin();
  if (bytes <= limit) {
    const std::uint64_t needed = (bytes + kBlockAlign - 1) / kBlockAlign * kBlockAlign;
    while (next != blocks_.end() && next->begin - begin < needed) begin = (next++)->end;
    if (next != blocks_.end() || limit - begin >= needed) {
      blocks_.insert(next, Block{begin, begin + needed});
      return begin;
    }
  }
  for (const Block& block : blocks_) used += block.end - block.begin;
  throw ConfigError(fmt::format(
      "host_buffer: {} bytes are asked for on rank {}, where {} of {} bytes are in use, with no gap as large; "
      "let some go, or raise the limit, for rank 0 (ESPALIER_HOST_BUFFER_BYTES or WorldOptions)",
      bytes, world_rank_, used, limit));
}

void Buffers::give_back(std::uint64_t begin) {
  const std::lock_guard lock(mutex_);
  std::erase_if(blocks_, [&](const Block& block) { return block.begin == begin; });
}

}  // namespace espalier::detail::host
