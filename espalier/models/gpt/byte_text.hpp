// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

namespace espalier {

// Texts as training data: bytes are the tokens (0 .. 255). Sample i is the window of context + 1
// bytes at i * context, so an epoch predicts every byte but the first once (and leaves out what is
// shorter than a window at the end). A cheap value: copies share the bytes.
class ByteText {
 public:
  // The files one after another, in this order. ConfigError for a file that is missing, unreadable
  // or empty, for no file at all, and when all together are shorter than context + 1 bytes.
  ByteText(std::span<const std::string> paths, std::int64_t context);

  std::int64_t num_bytes() const { return bytes_.numel(); }
  std::int64_t context() const { return context_; }
  std::int64_t num_samples() const { return (num_bytes() - 1) / context_; }

  struct Batch {
    at::Tensor input;   // [samples, context] int64
    at::Tensor target;  // [samples, context] int64: the byte after each input byte
  };
  // The given samples, in order; each index in 0 .. num_samples-1 (InternalError otherwise).
  Batch batch(std::span<const std::int64_t> samples) const;

 private:
  at::Tensor bytes_;  // uint8
  std::int64_t context_;
};

}  // namespace espalier
