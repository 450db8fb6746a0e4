// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace espalier {

// The smallest length of at least `num_elems` that a group of `size` can cut into whole bytes: a multiple of 8 * size.
std::int64_t compressed_length(std::int64_t num_elems, std::int64_t size);

// The length that DeepSpeed's 1-bit optimizers pad to: a multiple of size * lcm(size, 8).
std::int64_t deepspeed_compressed_length(std::int64_t num_elems, std::int64_t size);

// The state of a compressed all-reduce, of all members in group order.
struct CompressionErrors {
  std::vector<at::Tensor> worker;  // each [padded]
  std::vector<at::Tensor> server;  // each [padded / size]
};

// The same state for a group of `size` members and `padded_elems` (0: compressed_length()): the mean worker error and
// the server error of each of the `num_elems` elements are kept, padding starts at zero. Every member gets the mean
// worker error, summed in float64; state that already has this shape is returned as it is. ConfigError if the tensors
// do not fit together.
CompressionErrors recut(const CompressionErrors& errors, std::int64_t num_elems, std::int64_t size,
                        std::int64_t padded_elems = 0);

}  // namespace espalier
