// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/layout/rank_set.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "espalier/base/error.hpp"
#include "tests/support/expect_error.hpp"

namespace espalier {
namespace {

using Ranks = std::vector<std::int64_t>;
using testing::ElementsAre;

RankSet make(std::int64_t offset, std::vector<RankSet::Axis> axes) { return RankSet(offset, axes); }

// What the definition says, by enumeration.
Ranks brute_force(std::int64_t offset, const std::vector<RankSet::Axis>& axes) {
  Ranks ranks{offset};
  for (const RankSet::Axis& axis : axes) {
    Ranks next;
    for (std::int64_t rank : ranks) {
      if (axis.coordinates.empty()) {
        for (std::int64_t c = 0; c < axis.size; ++c) next.push_back(rank + c * axis.stride);
      } else {
        for (std::int64_t c : axis.coordinates) next.push_back(rank + c * axis.stride);
      }
    }
    ranks = next;
  }
  return ranks;
}

void expect_members(const RankSet& set, const Ranks& members) {
  ASSERT_EQ(set.to_vector(), members);
  ASSERT_EQ(set.size(), static_cast<std::int64_t>(members.size()));
  EXPECT_EQ(set.first(), members.front());
  for (std::size_t i = 0; i < members.size(); ++i) EXPECT_EQ(set.member(i), members[i]);
  for (std::int64_t rank = -2; rank < members.back() + 3; ++rank) {
    const auto found = std::find(members.begin(), members.end(), rank);
    const auto index = set.index_of(rank);
    ASSERT_EQ(index.has_value(), found != members.end()) << rank << " in " << set.to_string();
    if (index) {
      EXPECT_EQ(*index, found - members.begin());
    }
  }
}

TEST(RankSet, ListsMembersOfStridedAxesInAscendingOrder) {
  expect_members(RankSet(), {0});
  expect_members(RankSet::single(7), {7});
  expect_members(RankSet::range(4, 3), {4, 5, 6});
  expect_members(make(1, {{2, 8}, {2, 2}}), {1, 3, 9, 11});
  expect_members(make(0, {{4, 4, {0, 2, 3}}, {2, 1}}), {0, 1, 8, 9, 12, 13});
  expect_members(RankSet::of(Ranks{3, 4, 9}), {3, 4, 9});
  EXPECT_EQ(RankSet::range(5, 1), RankSet::single(5));
}

TEST(RankSet, EqualsASetWithTheSameMembersHoweverDescribed) {
  EXPECT_EQ(make(0, {{2, 4}, {4, 1}}), RankSet::range(0, 8));
  EXPECT_EQ(make(0, {{2, 4}, {2, 2}, {2, 1}}), RankSet::range(0, 8));
  EXPECT_EQ(RankSet::of(Ranks{0, 1, 4, 5}), make(0, {{2, 4}, {2, 1}}));
  EXPECT_EQ(make(0, {{8, 2, {1, 3}}}), RankSet::of(Ranks{2, 6}));
  EXPECT_EQ(make(0, {{4, 1, {0, 1, 3}}}), RankSet::of(Ranks{0, 1, 3}));
  EXPECT_FALSE(RankSet::of(Ranks{0, 1, 3}) == RankSet::of(Ranks{0, 2, 3}));
  EXPECT_FALSE(make(0, {{2, 4}, {2, 1}}) == make(0, {{2, 4}, {2, 2}}));
  EXPECT_FALSE(RankSet::range(0, 4) == RankSet::range(1, 4));
}

TEST(RankSet, AgreesWithBruteForceOnRandomAxes) {
  std::mt19937_64 random(7);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::vector<RankSet> sets;
  for (int round = 0; round < 600; ++round) {
    std::vector<RankSet::Axis> axes(draw(0, 5));
    std::int64_t stride = draw(1, 2);
    for (std::size_t i = axes.size(); i-- > 0;) {
      RankSet::Axis& axis = axes[i];
      axis = {.size = draw(1, 4), .stride = stride};
      for (std::int64_t c = 0; c < axis.size && round % 3 == 0; ++c) {
        if (draw(0, 1) == 1) axis.coordinates.push_back(c);
      }
      stride *= axis.size + (draw(0, 3) == 0 ? 1 : 0);
    }
    const std::int64_t offset = draw(0, 5);
    sets.emplace_back(offset, axes);
    expect_members(sets.back(), brute_force(offset, axes));
  }
  for (const RankSet& a : sets) {
    for (const RankSet& b : sets)
      ASSERT_EQ(a == b, a.to_vector() == b.to_vector()) << a.to_string() << " " << b.to_string();
  }
}

TEST(RankSet, ShiftsWithoutChangingForm) {
  expect_members(make(0, {{4, 2, {0, 1, 3}}}).shifted(5), {5, 7, 11});
  EXPECT_EQ(make(2, {{2, 4}}).shifted(-2), make(0, {{2, 4}}));
  EXPECT_CONFIG_ERROR(RankSet::single(1).shifted(-2), "cannot be shifted by -2");
}

TEST(RankSet, PrintsShortSetsInFullAndLongOnesByTheirForm) {
  EXPECT_EQ(make(0, {{4, 2}}).to_string(), "[0,2,4,6]");
  EXPECT_EQ(make(0, {{256, 2}}).to_string(), "[0,2,..,510] (256 ranks, 0+256x2)");
  EXPECT_EQ(make(3, {{9, 16, {0, 2, 3}}, {8, 1}}).to_string(), "[3,4,..,58] (24 ranks, 3+{0,2,3}x16+8x1)");
}

TEST(RankSet, HandlesWorldsNearTheLimitOf64Bits) {
  const std::int64_t big = std::int64_t{1} << 40;
  const RankSet set = make(5, {{big, 1 << 20}});
  EXPECT_EQ(set.size(), big);
  EXPECT_EQ(set.member(big - 1), 5 + (big - 1) * (1 << 20));
  EXPECT_EQ(set.index_of(5 + 3 * (1 << 20)), 3);
  EXPECT_CONFIG_ERROR(make(0, {{big, big}}), "beyond the 64-bit ranks");
}

TEST(RankSet, RefusesWhatIsNoAscendingSetOfRanks) {
  EXPECT_CONFIG_ERROR(make(-1, {}), "offset -1 is negative");
  EXPECT_CONFIG_ERROR(make(0, {{0, 1}}), "axis 0 has size 0");
  EXPECT_CONFIG_ERROR(make(0, {{2, 0}}), "stride 0");
  EXPECT_CONFIG_ERROR(make(0, {{2, 1}, {2, 1}}), "stride 1, but the faster axes span 1");
  EXPECT_CONFIG_ERROR(make(0, {{3, 1, {2, 1}}}), "1 follows 2");
  EXPECT_CONFIG_ERROR(make(0, {{3, 1, {1, 3}}}), "lists coordinate 3, but its size is 3");
  EXPECT_CONFIG_ERROR(make(0, std::vector<RankSet::Axis>(9)), "9 axes; at most 8");
  EXPECT_CONFIG_ERROR(RankSet::of(Ranks{}), "no ranks");
  EXPECT_CONFIG_ERROR(RankSet::of(Ranks{4, 4}), "4 follows 4");
  EXPECT_CONFIG_ERROR(RankSet::of(Ranks{-1, 4}), "-1 is negative");
  EXPECT_CONFIG_ERROR(RankSet::range(0, 0), "size 0");
  EXPECT_CONFIG_ERROR(RankSet::range(0, 4).member(4), "index 4 of a set of 4; expected 0 to 3");
}

}  // namespace
}  // namespace espalier
