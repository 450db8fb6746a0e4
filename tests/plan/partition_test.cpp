// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/partition/partition.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "espalier/base/error.hpp"

namespace espalier {
namespace {

using Cuts = std::vector<std::int64_t>;
using testing::HasSubstr;

// Every way to cut n items into non-empty parts, the rightmost cuts first.
void all_cuts(std::int64_t n, std::int64_t parts, Cuts& cuts, std::vector<Cuts>& result) {
  if (parts == 1) {
    result.push_back(cuts);
    result.back().push_back(n);
    return;
  }
  for (std::int64_t end = n - parts + 1; end > cuts.back(); --end) {
    cuts.push_back(end);
    all_cuts(n, parts - 1, cuts, result);
    cuts.pop_back();
  }
}

TEST(Partition, BalancedIsTheBestOfAllCuts) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 600; ++trial) {
    const std::int64_t n = 1 + random() % 9, parts = 1 + random() % n;
    std::vector<double> weights;
    for (std::int64_t i = 0; i < n; ++i) weights.push_back(static_cast<double>(random() % (trial % 2 ? 4 : 50)));
    std::vector<Cuts> candidates;
    Cuts begin{0};
    all_cuts(n, parts, begin, candidates);
    const auto rank = [&](const Cuts& cuts) {
      const auto loads = part_loads(weights, cuts);
      const auto [low, high] = std::minmax_element(loads.begin(), loads.end());
      return std::pair(*high, *high - *low);
    };
    const Cuts& best = *std::min_element(candidates.begin(), candidates.end(),
                                         [&](const Cuts& a, const Cuts& b) { return rank(a) < rank(b); });
    EXPECT_EQ(partition_balanced(weights, parts), best) << testing::PrintToString(weights) << " in " << parts;
  }
}

TEST(Partition, BalancedOfEqualWeightsIsUniform) {
  for (std::int64_t n = 0; n <= 20; ++n)
    for (std::int64_t parts = 1; parts <= 24; ++parts)
      for (double weight : {1.0, 0.1})  // 0.1 has no exact sum: rounding must not decide
        EXPECT_EQ(partition_balanced(std::vector<double>(n, weight), parts), partition_uniform(n, parts))
            << n << " in " << parts;
}

TEST(Partition, BalancedLeavesNoStageEmptyWhereTheReferenceDoes) {
  const std::vector<double> weights{1, 2, 1, 0};
  EXPECT_EQ(partition_balanced(weights, 3), (Cuts{0, 1, 2, 4}));
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t n = 1 + random() % 30, parts = 1 + random() % n;
    std::vector<double> mostly_zero;
    for (std::int64_t i = 0; i < n; ++i) mostly_zero.push_back(random() % 5 ? 0.0 : static_cast<double>(random() % 9));
    const Cuts cuts = partition_balanced(mostly_zero, parts);
    ASSERT_EQ(static_cast<std::int64_t>(cuts.size()), parts + 1);
    for (std::int64_t p = 0; p < parts; ++p)
      EXPECT_LT(cuts[p], cuts[p + 1]) << testing::PrintToString(mostly_zero) << " in " << parts;
  }
}

TEST(Partition, KeepsCountsOfParametersExact) {  // differences of one in 10^12 are not rounding
  const double big = 1e12;
  EXPECT_EQ(partition_balanced(std::vector<double>{big, 1, big}, 2), (Cuts{0, 2, 3}));
  EXPECT_EQ(partition_balanced(std::vector<double>{big + 1, 1, big}, 2), (Cuts{0, 1, 3}));
}

template <class Fn>
std::string refusal(Fn fn) {
  try {
    fn();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Partition, RefusesBadNumbersAndNamesThem) {
  const std::vector<double> good{1, 2}, negative{1, -3}, nan{NAN}, inf{1, 2, INFINITY}, huge{1e308, 1e308};
  EXPECT_EQ(refusal([&] { partition_balanced(good, 0); }), "partition: 0 parts; at least 1 is needed");
  EXPECT_EQ(refusal([&] { partition_deepspeed(good, -1); }), "partition: -1 parts; at least 1 is needed");
  EXPECT_EQ(refusal([&] { partition_uniform(5, 1 << 25); }), "partition: 33554432 parts; at most 16777216 are allowed");
  EXPECT_EQ(refusal([&] { partition_uniform(-5, 2); }), "partition: -5 items; at least 0 are needed");
  for (auto method : {partition_balanced, partition_deepspeed}) {
    EXPECT_EQ(refusal([&] { method(negative, 2); }),
              "partition: weight 1 is -3; weights must be finite and at least 0");
    EXPECT_EQ(refusal([&] { method(nan, 1); }), "partition: weight 0 is nan; weights must be finite and at least 0");
    EXPECT_EQ(refusal([&] { method(inf, 1); }), "partition: weight 2 is inf; weights must be finite and at least 0");
    EXPECT_THAT(refusal([&] { method(huge, 1); }), HasSubstr("scale them down"));
  }
}

TEST(Partition, ExplicitCutsAreReturnedOrRefusedWithTheReason) {
  EXPECT_EQ(partition_explicit({0, 2, 5}, 5, 2), (Cuts{0, 2, 5}));
  EXPECT_EQ(partition_explicit({0, 1, 1, 1}, 1, 3), (Cuts{0, 1, 1, 1}));
  EXPECT_EQ(partition_explicit({0, 0}, 0, 1), (Cuts{0, 0}));
  const auto text = [](Cuts cuts, std::int64_t items, std::int64_t parts) {
    return refusal([&] { partition_explicit(cuts, items, parts); });
  };
  EXPECT_EQ(text({0, 2, 5}, 5, 3),
            "partition 0,2,5: 3 cuts; 3 parts need 4: 0, the first item of each further part, and "
            "the number of items (5)");
  EXPECT_EQ(text({}, 5, 1),
            "partition : 0 cuts; 1 parts need 2: 0, the first item of each further part, and the "
            "number of items (5)");
  EXPECT_EQ(text({1, 2, 5}, 5, 2), "partition 1,2,5: begins with 1; the first part begins with item 0");
  EXPECT_EQ(text({0, 2, 6}, 5, 2), "partition 0,2,6: ends with 6; there are 5 items");
  EXPECT_EQ(text({0, 3, 2, 5}, 5, 3), "partition 0,3,2,5: 3 comes before 2; cuts must ascend");
  EXPECT_EQ(text({0, 2, 2, 5}, 5, 3), "partition 0,2,2,5: part 1 is empty; 5 items are enough for 3 parts");
}

TEST(Partition, ByTypeCountsTheNamesThatMatch) {
  const std::vector<std::string> names{
      "Embedding", "TransformerLayer", "TransformerLayer", "TransformerLayer", "TransformerLayer", "MLP", "Head"};
  EXPECT_EQ(partition_by_type(names, "transformer", 2), (Cuts{0, 3, 7}));
  EXPECT_EQ(partition_by_type(names, "^(MLP|head)$", 2), (Cuts{0, 6, 7}));
  EXPECT_EQ(refusal([&] { partition_by_type(names, "conv", 2); }),
            "partition type:conv: matches none of the 7 types; there are Embedding, Head, MLP, "
            "TransformerLayer");
  EXPECT_THAT(refusal([&] { partition_by_type(names, "(", 2); }),
              HasSubstr("partition type:(: malformed regular expression"));
}

TEST(Partition, LoadsOfPartsAddUpTheirItems) {
  const std::vector<double> weights{5, 1, 1, 1, 5};
  EXPECT_EQ(part_loads(weights, Cuts{0, 1, 4, 5}), (std::vector<double>{5, 3, 5}));
  EXPECT_EQ(part_loads(weights, Cuts{0, 0, 5}), (std::vector<double>{0, 13}));
  for (const Cuts& bad : {Cuts{}, Cuts{0, 4}, Cuts{1, 5}, Cuts{0, 3, 2, 5}})
    EXPECT_THAT(refusal([&] { part_loads(weights, bad); }), HasSubstr("cuts must ascend from 0 to 5"));
}

}  // namespace
}  // namespace espalier
