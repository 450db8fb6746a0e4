// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/comm/group.hpp"

namespace espalier {

// A tensor of any shape of which each member of a group holds a part: its elements in row-major order are cut as
// partition_uniform cuts them, the longer parts first. Parts may be empty. (After DeepSpeed's PartitionedTensor.)
class PartitionedTensor {
 public:
  // Copies this rank's part of `tensor` (dense, on the CPU), which must be the same on all members. The copy is
  // differentiable. Does not communicate.
  PartitionedTensor(const at::Tensor& tensor, const Group& group);

  const at::Tensor& local_data() const { return local_; }  // [local_size]
  std::int64_t local_size() const { return local_.numel(); }
  std::span<const std::int64_t> shape() const { return shape_; }     // of the whole tensor
  std::span<const std::int64_t> partition() const { return cuts_; }  // part p: [cuts[p], cuts[p+1])
  const Group& group() const { return group_; }

  // The whole tensor. All members must call; blocks. One all_gather_v. Differentiable, see gather_parts: local_data()
  // gets the sum of the gradients of all members' whole tensors, in a backward that all of them must run.
  at::Tensor full() const;

  // What from_meta() needs besides the part, as int64 numbers. The first form is DeepSpeed's, number for number:
  // [dimensions, sizes.., parts, rank, cuts 0 .. parts]. The second puts in front of it [kMagic, kVersion, dtype
  // (LibTorch's number of it), whether the part requires a gradient].
  at::Tensor to_meta() const;
  at::Tensor to_versioned_meta() const;
  static constexpr std::int64_t kMagic = 0x455350414c494552;  // "ESPALIER"
  static constexpr std::int64_t kVersion = 1;

  // From either form and this rank's part, whose memory it shares. Where the versioned form says so, the part becomes a
  // leaf that requires a gradient, unless it requires one already. ConfigError, with the numbers, when the metadata
  // contradict themselves, the group, or the part. Does not communicate.
  static PartitionedTensor from_meta(const at::Tensor& meta, const at::Tensor& local, const Group& group);

 private:
  PartitionedTensor() = default;

  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> cuts_;
  at::Tensor local_;
  Group group_;
};

}  // namespace espalier
