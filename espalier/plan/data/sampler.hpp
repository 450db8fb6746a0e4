// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace espalier {

// A random order of 0 .. size-1, computed one element at a time: no memory, O(1) on average. Equal
// keys give equal orders everywhere.
class Permutation {
 public:
  // ConfigError unless size >= 1.
  Permutation(std::int64_t size, std::uint64_t key);

  std::int64_t size() const { return size_; }
  // The element at 0 <= position < size.
  std::int64_t operator()(std::int64_t position) const;

 private:
  std::int64_t size_;
  std::uint64_t key_;
  int half_bits_;
};

struct SamplerOptions {
  std::int64_t num_samples = 0;    // in the data set
  std::int64_t batch = 0;          // samples of one step, over all data ranks
  std::int64_t data = 1;           // data ranks that share the batch
  std::int64_t micro_batches = 1;  // that each data rank makes of its share
  std::uint64_t seed = 0;
};

// Which samples make up each micro-batch of each step. All data ranks and steps read one endless
// sequence: epoch after epoch, each a Permutation of all samples that depends on (seed, epoch)
// alone. So the samples of a step and their order are the same in every layout, every sample comes
// once an epoch, and the step number is all that a resumed run needs. A step takes the next `batch`
// samples; data rank d's micro-batch m is the contiguous piece number d * micro_batches + m of
// them.
class Sampler {
 public:
  // ConfigError unless all counts are >= 1 and the batch divides into data x micro-batches.
  explicit Sampler(const SamplerOptions& options);

  std::int64_t micro_batch_size() const { return micro_batch_size_; }
  // `micro_batch_size()` sample indices, each in 0 .. num_samples-1. Needs step >= 0, 0 <=
  // data_rank < data and 0 <= micro_batch < micro_batches (InternalError otherwise).
  std::vector<std::int64_t> micro_batch(std::int64_t step, std::int64_t data_rank, std::int64_t micro_batch) const;

 private:
  SamplerOptions options_;
  std::int64_t micro_batch_size_;
};

}  // namespace espalier
