// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/seed.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

namespace espalier {
namespace {

// A change of these values changes every run of every user: they are part of the format of
// checkpoints.
TEST(Seed, HasTheValuesItAlwaysHad) {
  EXPECT_EQ(derive_seed(0, ""), 4725398728194510117u);
  EXPECT_EQ(derive_seed(1, "init", {0}), 9236581560736610191u);
  EXPECT_EQ(derive_seed(1, "dropout", {3, 5, 7}), 2990468948552531657u);
  EXPECT_EQ(derive_seed(0xffffffffffffffffu, "data", {-1, INT64_MAX}), 17332571048796756714u);
}

TEST(Seed, TellsApartWhatReadsAlike) {
  const std::set<std::uint64_t> seeds{
      derive_seed(1, "ab"),       derive_seed(1, "a", {'b'}),  derive_seed(1, "a", {1, 2}), derive_seed(1, "a", {2, 1}),
      derive_seed(1, "a", {12}),  derive_seed(1, "a", {1}),    derive_seed(1, "a", {1, 0}), derive_seed(1, "a"),
      derive_seed(1, "a", {0}),   derive_seed(1, "", {'a'}),   derive_seed(2, "a"),         derive_seed(1, "A"),
      derive_seed(1, {"a\0", 2}), derive_seed(1, "a", {0, 1}), derive_seed(1, "a", {0, 0}), derive_seed(256, "a")};
  EXPECT_EQ(seeds.size(), 16u);
}

TEST(Seed, GivesNoSeedTwiceOverAGrid) {
  std::set<std::uint64_t> seeds;
  for (std::int64_t layer = 0; layer < 300; ++layer)
    for (std::int64_t micro_batch = 0; micro_batch < 300; ++micro_batch)
      seeds.insert(derive_seed(7, "dropout", {layer, micro_batch}));
  EXPECT_EQ(seeds.size(), 90'000u);  // of 2^64: a repetition by chance has a probability of 2e-10
}

// Each bit of the seed is set half the time, and flips half the time when one bit of an input
// flips.
TEST(Seed, SpreadsEveryInputBitOverEveryOutputBit) {
  constexpr int kTrials = 4000;
  const double bound = 6 * std::sqrt(kTrials * 0.25);  // six standard deviations of a fair coin
  int set[64] = {}, flipped[2][64] = {};
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::uint64_t here = derive_seed(trial, "init", {trial % 97});
    const std::uint64_t other_seed = derive_seed(trial ^ (1ull << (trial % 64)), "init", {trial % 97});
    const std::uint64_t other_coordinate =
        derive_seed(trial, "init", {static_cast<std::int64_t>((trial % 97) ^ (1ull << (trial % 64)))});
    for (int bit = 0; bit < 64; ++bit) {
      set[bit] += here >> bit & 1;
      flipped[0][bit] += (here ^ other_seed) >> bit & 1;
      flipped[1][bit] += (here ^ other_coordinate) >> bit & 1;
    }
  }
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NEAR(set[bit], kTrials / 2, bound) << "bit " << bit;
    EXPECT_NEAR(flipped[0][bit], kTrials / 2, bound) << "seed, bit " << bit;
    EXPECT_NEAR(flipped[1][bit], kTrials / 2, bound) << "coordinate, bit " << bit;
  }
}

TEST(Seed, NeighbouringStreamsAreUncorrelated) {
  constexpr int kSeeds = 20'000;
  double sum = 0;
  for (int i = 0; i < kSeeds; ++i) {
    const auto a = derive_seed(1, "data", {i}), b = derive_seed(1, "data", {i + 1});
    sum += std::popcount(a ^ b);
  }
  EXPECT_NEAR(sum / kSeeds, 32.0,
              6 * 4 / std::sqrt(kSeeds));  // binomial(64, 1/2): mean 32, standard deviation 4
}

}  // namespace
}  // namespace espalier
