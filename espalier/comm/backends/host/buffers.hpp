// SPDX-License-Identifier: Apache-2.0
// Private: tensors of one rank whose storage the other ranks of the host reach. The bookkeeping is local to that rank.
// The lowest fitting gap is taken, so that what is made again and again keeps using the same warm memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "espalier/comm/backends/host/segment.hpp"

namespace espalier::detail::host {

class Buffers : public std::enable_shared_from_this<Buffers> {
 public:
  // `world_rank`: what messages call the rank.
  Buffers(std::shared_ptr<Segment> segment, std::int64_t rank, std::int64_t world_rank);

  // Not initialised; its storage keeps the segment mapped, and is free again when its last tensor goes. ConfigError
  // when the rank's limit leaves no room. Thread-safe, as the end of a tensor is.
  at::Tensor make(at::IntArrayRef sizes, at::ScalarType dtype);

  // Where these bytes begin in the rank's part of the segment; nullopt: they lie elsewhere.
  std::optional<std::uint64_t> place_of(const void* data, std::size_t bytes) const;

 private:
  struct Block {
    std::uint64_t begin;
    std::uint64_t end;
  };

  std::uint64_t take(std::uint64_t bytes);
  void give_back(std::uint64_t begin);

  const std::shared_ptr<Segment> segment_;
  const std::int64_t rank_;
  const std::int64_t world_rank_;
  std::mutex mutex_;
  std::vector<Block> blocks_;  // in use, ascending
};

}  // namespace espalier::detail::host
