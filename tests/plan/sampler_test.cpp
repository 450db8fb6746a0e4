// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/data/sampler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "tests/support/error_of.hpp"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::int64_t> counting(std::int64_t size) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(size));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

std::vector<std::int64_t> elements(const Permutation& order) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < order.size(); ++i) values.push_back(order(i));
  return values;
}

// All samples of a step, in order.
std::vector<std::int64_t> global_batch(const SamplerOptions& options, std::int64_t step) {
  const Sampler sampler(options);
  std::vector<std::int64_t> batch;
  for (std::int64_t d = 0; d < options.data; ++d) {
    for (std::int64_t m = 0; m < options.micro_batches; ++m) {
      const auto part = sampler.micro_batch(step, d, m);
      EXPECT_EQ(static_cast<std::int64_t>(part.size()), sampler.micro_batch_size());
      batch.insert(batch.end(), part.begin(), part.end());
    }
  }
  return batch;
}

TEST(Permutation, HoldsEveryElementOnce) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 63, 64, 65, 1000, 4096, 20'011}) {
    for (const std::uint64_t key : {0U, 1U, 12345U}) {
      auto values = elements(Permutation(size, key));
      std::ranges::sort(values);
      EXPECT_EQ(values, counting(size)) << size << " " << key;
    }
  }
}

TEST(Permutation, WorksAtTheLargestSizes) {
  const std::int64_t size = INT64_MAX;
  const Permutation order(size, 5);
  for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1}, size / 2, size - 1}) {
    EXPECT_GE(order(position), 0);
    EXPECT_LT(order(position), size);
  }
}

// With 24000 keys each of the 24 orders of 4 is expected 1000 times; the bound is chi-square's 1 in
// 10^6 (23 degrees).
TEST(Permutation, GivesAllOrdersAlike) {
  std::map<std::vector<std::int64_t>, double> counts;
  for (std::uint64_t key = 0; key < 24'000; ++key) counts[elements(Permutation(4, key * 0x9e3779b97f4a7c15U))] += 1;
  double chi_square = 0;
  for (const auto& [order, count] : counts) chi_square += (count - 1000) * (count - 1000) / 1000;
  EXPECT_EQ(counts.size(), 24U);
  EXPECT_LT(chi_square, 67.0);
}

TEST(Permutation, LeavesNeighboursUncorrelated) {
  const std::int64_t size = 20'000;
  const auto values = elements(Permutation(size, 99));
  const double mean = static_cast<double>(size - 1) / 2;
  double covariance = 0;
  double variance = 0;
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    covariance += (static_cast<double>(values[i]) - mean) * (static_cast<double>(values[i + 1]) - mean);
    variance += (static_cast<double>(values[i]) - mean) * (static_cast<double>(values[i]) - mean);
  }
  EXPECT_LT(std::abs(covariance / variance), 4 / std::sqrt(static_cast<double>(size)));
}

TEST(Sampler, GivesTheSameBatchInEveryLayout) {
  for (std::int64_t step = 0; step < 40; ++step) {
    const auto alone = global_batch({.num_samples = 101, .batch = 16, .seed = 3}, step);
    for (const auto& [data, micro_batches] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 2}, {2, 1}, {2, 4}, {4, 4}, {16, 1}}) {
      EXPECT_EQ(global_batch({.num_samples = 101, .batch = 16, .data = data, .micro_batches = micro_batches, .seed = 3},
                             step),
                alone)
          << step << " " << data << " " << micro_batches;
    }
  }
}

TEST(Sampler, VisitsEverySampleOnceAnEpochInAnotherOrderEachTime) {
  const SamplerOptions options{.num_samples = 10, .batch = 4, .seed = 1};  // 2.5 steps an epoch
  std::vector<std::int64_t> sequence;
  for (std::int64_t step = 0; step < 5; ++step) {
    for (const std::int64_t sample : global_batch(options, step)) sequence.push_back(sample);
  }
  std::vector<std::int64_t> first(sequence.begin(), sequence.begin() + 10);
  std::vector<std::int64_t> second(sequence.begin() + 10, sequence.end());
  EXPECT_NE(first, second);
  std::ranges::sort(first);
  std::ranges::sort(second);
  EXPECT_EQ(first, counting(10));
  EXPECT_EQ(second, counting(10));
}

TEST(Sampler, TakesABatchLargerThanTheDataSet) {
  const auto batch = global_batch({.num_samples = 3, .batch = 8, .data = 2, .micro_batches = 2}, 0);
  for (std::int64_t sample = 0; sample < 3; ++sample) EXPECT_GE(std::ranges::count(batch, sample), 2);
}

TEST(Sampler, OfAnotherSeedGivesAnotherOrder) {
  EXPECT_NE(global_batch({.num_samples = 1000, .batch = 16, .seed = 1}, 0),
            global_batch({.num_samples = 1000, .batch = 16, .seed = 2}, 0));
}

TEST(Sampler, RefusesABatchThatDoesNotDivide) {
  EXPECT_THAT(
      testing_support::error_of([] { Sampler({.num_samples = 100, .batch = 18, .data = 2, .micro_batches = 4}); }),
      AllOf(HasSubstr("batch of 18"), HasSubstr("data 2 x micro-batches 4 = 8"), HasSubstr("such as 24")));
  EXPECT_THAT(testing_support::error_of([] { Sampler({.num_samples = 0, .batch = 8}); }), HasSubstr("0 samples"));
  EXPECT_THAT(testing_support::error_of([] { Sampler({.num_samples = 9, .batch = 0}); }), HasSubstr("batch 0"));
  EXPECT_THAT(testing_support::error_of([] { Sampler({.num_samples = 9, .batch = 8, .data = -2}); }),
              HasSubstr("data -2"));
}

}  // namespace
}  // namespace espalier
