// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "espalier/comm/group.hpp"

namespace espalier {

// flat <- its mean over the group, in buckets of at most `bucket_bytes` that travel at the same time. `flat` is a
// contiguous 1-d floating tensor of the same length on every member. Collective over the group; blocks.
void average_in_buckets(at::Tensor& flat, const Group& group, std::int64_t bucket_bytes);

// What each of `size` ranks sends in a ring all-reduce of so many bytes: 2 (size - 1) / size of them.
std::int64_t ring_all_reduce_bytes(std::int64_t bytes, std::int64_t size);

}  // namespace espalier
