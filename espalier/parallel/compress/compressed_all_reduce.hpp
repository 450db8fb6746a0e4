// SPDX-License-Identifier: Apache-2.0
// The mean over a group with one bit an element on the wire, after Tang et al., "1-bit Adam" (2021). What a member's
// bits miss is kept as its *worker error* and added to its next tensor; each member also sums one chunk for all, and
// what the bits of that sum miss is its *server error*. So over many calls the results add up to the exact means.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "espalier/comm/group.hpp"
#include "espalier/parallel/compress/compression_errors.hpp"

namespace espalier {

struct CompressionOptions {
  // Elements that travel, a multiple of 8 * group size; 0: compressed_length().
  std::int64_t padded_elems = 0;
  // As DeepSpeed has it: padding counts as elements of value zero, takes part in the scales and gathers errors.
  // Otherwise it is left out of everything, and its errors stay zero.
  bool padding_in_scale = false;
};

// What this member sent in a call. The tensors are overwritten by the next one.
struct CompressedMessage {
  double worker_scale = 0.0;  // 2-norm of tensor + worker error over the root of the number of elements
  at::Tensor
      worker_bits;  // uint8 [padded / 8]; 1: at or above zero; first element = highest bit; chunk k is for member k
  double server_scale = 0.0;  // the same of my chunk of the mean + server error
  at::Tensor server_bits;     // uint8 [padded / 8 / size]
};

class CompressedAllReduce {
 public:
  // For tensors of `num_elems` elements of float64, float32, float16 or bfloat16; errors, zero at first, are float64
  // for float64, else float32. Every member must construct it with the same numbers: ConfigError on all if they differ,
  // or if padded_elems is too small or no multiple of 8 * size. Blocks.
  CompressedAllReduce(const Group& group, std::int64_t num_elems, at::ScalarType dtype,
                      const CompressionOptions& options = {});

  // tensor (any shape, num_elems elements) <- its compressed mean over the group, the same bits on every member. All
  // members must call; blocks. Three steps: all-gather of scales, all-to-all of bits, all-gather of the chunks' bits
  // and scales. If tensor + worker error of any member is not finite, or a chunk of the mean is not or is too large for
  // the dtype, every member throws the same ConfigError; the tensor stays as it was, and all errors are set to zero.
  void mean_(at::Tensor& tensor);

  // The state, formed anew: [padded] and [padded / size].
  at::Tensor worker_error() const { return worker_.error(); }
  at::Tensor server_error() const { return server_.error(); }
  // Goes on from this state, bit for bit.
  void set_errors(const at::Tensor& worker, const at::Tensor& server);

  const CompressedMessage& last_message() const { return message_; }
  std::int64_t num_elems() const { return num_elems_; }
  std::int64_t padded_elems() const { return padded_; }
  // What this member has handed to the transport for the others, all calls together. A call of n members costs
  // (n - 1) * (padded / (4 * n) + 2 * size of a scale) bytes.
  std::int64_t bytes_sent() const { return bytes_sent_; }

 private:
  // What was compressed last, and the scale it travelled with: together the error (see kernels.hpp).
  struct Compressed {
    at::Tensor elements;
    std::int64_t counted = 0;  // elements that take part; the others are zero
    double scale = 0.0;

    at::Tensor error() const;
    void set_error(const at::Tensor& error);
    void forget();
  };

  template <class T>
  void mean_of(at::Tensor& tensor);
  // Every member's ConfigError, if some member's scale is not finite or above `largest`.
  void check_scales(std::span<const double> scales, double largest, std::string_view what);

  Group group_;
  std::int64_t num_elems_;
  at::ScalarType dtype_;
  bool padding_in_scale_;
  std::int64_t padded_;
  Compressed worker_, server_;
  at::Tensor received_bits_;  // [size, padded / 8 / size]: everybody's bits of my chunk
  at::Tensor packet_;         // my server scale, then my server bits
  at::Tensor packets_;        // everybody's
  CompressedMessage message_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace espalier
