// SPDX-License-Identifier: Apache-2.0
// A Feistel network is a random-looking bijection of all numbers of 2h bits. Numbers it sends
// beyond the size are sent through it again until they fall inside ("cycle walking"; Black and
// Rogaway 2002, section 3): still a bijection, and fewer than 4 rounds on average, since 2h bits
// hold less than 4 times the size.
#include "espalier/plan/data/sampler.hpp"

#include <bit>

#include "espalier/base/check.hpp"
#include "espalier/plan/seed.hpp"

namespace espalier {
namespace {

constexpr std::int64_t kNumRounds = 6;

// SplitMix64's finalizer.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t key) : size_(size), key_(key) {
  ESPALIER_CHECK_CONFIG(size >= 1, "permutation: size {}; expected at least 1", size);
  half_bits_ = (static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size - 1))) + 1) / 2;
}

std::int64_t Permutation::operator()(std::int64_t position) const {
  ESPALIER_CHECK(position >= 0 && position < size_, "position {} of a permutation of {}", position, size_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(position);
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (std::int64_t round = 0; round < kNumRounds; ++round) {
      const std::uint64_t next = left ^ (mix(mix(key_ + static_cast<std::uint64_t>(round)) + right) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  const auto& [num_samples, batch, data, micro_batches, seed] = options;
  ESPALIER_CHECK_CONFIG(num_samples >= 1, "sampler: the data set has {} samples; expected at least 1", num_samples);
  ESPALIER_CHECK_CONFIG(batch >= 1 && data >= 1 && micro_batches >= 1,
                        "sampler: batch {}, data {}, micro-batches {}; expected each to be at least 1", batch, data,
                        micro_batches);
  ESPALIER_CHECK_CONFIG(batch % data == 0 && batch / data % micro_batches == 0,
                        "sampler: a batch of {} does not divide into data {} x micro-batches {} = "
                        "{} equal parts; expected a multiple "
                        "of {}, such as {}",
                        batch, data, micro_batches, data * micro_batches, data * micro_batches,
                        (batch / (data * micro_batches) + 1) * data * micro_batches);
  micro_batch_size_ = batch / data / micro_batches;
}

std::vector<std::int64_t> Sampler::micro_batch(std::int64_t step, std::int64_t data_rank,
                                               std::int64_t micro_batch) const {
  ESPALIER_CHECK(step >= 0 && data_rank >= 0 && data_rank < options_.data && micro_batch >= 0 &&
                     micro_batch < options_.micro_batches,
                 "step {}, data rank {} of {}, micro-batch {} of {}", step, data_rank, options_.data, micro_batch,
                 options_.micro_batches);
  const std::int64_t first =
      step * options_.batch + (data_rank * options_.micro_batches + micro_batch) * micro_batch_size_;
  std::vector<std::int64_t> samples;
  for (std::int64_t i = first; i < first + micro_batch_size_; ++i) {
    const std::int64_t epoch = i / options_.num_samples;
    const Permutation order(options_.num_samples, derive_seed(options_.seed, "data", {epoch}));
    samples.push_back(order(i % options_.num_samples));
  }
  return samples;
}

}  // namespace espalier
