// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace espalier {

// Texts as training data: bytes are the tokens (0 .. 255). Sample i is the window of context + 1
// bytes at i * context, so an epoch predicts every byte but the first once (and leaves out what is
// shorter than a window at the end). The files stay open and each window is read when it is asked for, so
// texts may be of any size; the system keeps what is read often in memory, once for all ranks of a
// host. A cheap value: copies share the files.
class ByteText {
 public:
  // The files one after another, in this order. ConfigError for a file that is missing, unreadable,
  // empty or no regular file, for no file at all, and when all together are shorter than context + 1 bytes.
  ByteText(std::span<const std::string> paths, std::int64_t context);

  // The `num_bytes` from `first_byte` on, as a text of its own. ConfigError when they are fewer than context + 1.
  ByteText part(std::int64_t first_byte, std::int64_t num_bytes) const;

  std::int64_t num_bytes() const { return num_bytes_; }
  std::int64_t context() const { return context_; }
  std::int64_t num_samples() const { return (num_bytes_ - 1) / context_; }

  struct Batch {
    at::Tensor input;   // [samples, context] int64
    at::Tensor target;  // [samples, context] int64: the byte after each input byte
  };
  // The given samples, in order; each index in 0 .. num_samples-1 (InternalError otherwise). ConfigError when a file
  // can no longer be read or has become shorter.
  Batch batch(std::span<const std::int64_t> samples) const;

  // A number that tells this text from others: of its length and 4 KiB at up to 64 places spread over it, so that a
  // text of any size costs the same. Two texts that differ only between these places have the same.
  std::uint64_t fingerprint() const;

 private:
  class Files;
  std::shared_ptr<const Files> files_;
  std::int64_t first_byte_ = 0;
  std::int64_t num_bytes_ = 0;
  std::int64_t context_;
};

}  // namespace espalier
