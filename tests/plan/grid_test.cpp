// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/layout/grid.hpp"

#include <gmock/gmock.h>

#include <map>
#include <random>

#include "tests/support/expect_error.hpp"

namespace espalier {
namespace {

using Ranks = std::vector<std::int64_t>;

std::vector<Ranks> lists(const Family& family) {
  std::vector<Ranks> all;
  for (std::int64_t i = 0; i < family.size(); ++i) all.push_back(family.set(i).to_vector());
  return all;
}

TEST(Grid, CountsTheLastAxisFastest) {
  const Grid grid({{"pipe", 2}, {"data", 3}, {"tensor", 2}}, 10);
  EXPECT_EQ(grid.size(), 12);
  EXPECT_EQ(grid.stride("pipe"), 6);
  EXPECT_EQ(grid.coordinates(21), (Ranks{1, 2, 1}));
  EXPECT_EQ(grid.coordinate("data", 21), 2);
  EXPECT_EQ(grid.rank(Ranks{1, 2, 1}), 21);
  EXPECT_EQ(grid.ranks(), RankSet::range(10, 12));
  EXPECT_EQ(grid.fiber(15, {"data"}).to_vector(), (Ranks{11, 13, 15}));
  EXPECT_EQ(grid.fiber(15, {"tensor", "pipe"}).to_vector(), (Ranks{14, 15, 20, 21}));
  const std::vector<Varying> first_and_last{{"data", {0, 2}}, {"tensor", {1}}};
  EXPECT_EQ(grid.fiber(12, first_and_last).to_vector(), (Ranks{11, 15}));
}

TEST(Grid, OrdersAFamilyByTheHeldAxes) {
  const Grid grid{{"pipe", 2}, {"data", 2}, {"tensor", 2}};
  EXPECT_EQ(lists(grid.family({"data"})), (std::vector<Ranks>{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(lists(grid.family({"data"}, {"tensor", "pipe"})), (std::vector<Ranks>{{0, 2}, {4, 6}, {1, 3}, {5, 7}}));
  EXPECT_EQ(lists(grid.family({"pipe", "data", "tensor"})), (std::vector<Ranks>{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(grid.family({"data"}, {"tensor", "pipe"}).index_of(4), 1);
}

TEST(Grid, LeavesOutRanksWhoseCoordinateIsNotListed) {
  const Grid grid{{"pipe", 4}, {"data", 2}};
  const Family tied = grid.family({{"pipe", {0, 2, 3}}});
  EXPECT_EQ(lists(tied), (std::vector<Ranks>{{0, 4, 6}, {1, 5, 7}}));
  EXPECT_EQ(tied.index_of(7), 1);
  EXPECT_EQ(tied.index_of(2), std::nullopt);
  EXPECT_EQ(tied.index_of(8), std::nullopt);
}

TEST(Grid, SplitsAnAxisWithoutMovingRanks) {
  const Grid grid = Grid{{"pipe", 2}, {"data", 6}}.split("data", {{"replica", 2}, {"shard", 3}});
  EXPECT_EQ(grid.to_string(), "pipe=2,replica=2,shard=3");
  EXPECT_EQ(lists(grid.family({"replica"})), (std::vector<Ranks>{{0, 3}, {1, 4}, {2, 5}, {6, 9}, {7, 10}, {8, 11}}));
  EXPECT_CONFIG_ERROR((Grid{{"data", 6}}.split("data", {{"replica", 2}, {"shard", 2}})),
                      "replica=2,shard=2 makes 4, but axis 'data' has size 6");
}

// Random grids of up to 6 axes, every choice of varying axes, against coordinates counted one by
// one.
TEST(Grid, AgreesWithBruteForceOnRandomGrids) {
  std::mt19937_64 random(11);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  int families = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<GridAxis> axes(draw(0, 6));
    for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = {std::string(1, static_cast<char>('a' + i)), draw(1, 4)};
    const std::int64_t offset = draw(0, 3);
    const Grid grid(axes, offset);
    std::vector<Ranks> coordinates{Ranks(axes.size())};
    while (static_cast<std::int64_t>(coordinates.size()) < grid.size()) {
      Ranks next = coordinates.back();
      for (std::size_t i = axes.size(); i-- > 0 && ++next[i] == axes[i].size;) next[i] = 0;
      coordinates.push_back(next);
    }
    for (std::int64_t r = 0; r < grid.size(); ++r) {
      ASSERT_EQ(grid.coordinates(offset + r), coordinates[r]);
      ASSERT_EQ(grid.rank(coordinates[r]), offset + r);
    }
    for (AxisMask mask = 0; mask < AxisMask{1} << axes.size(); ++mask) {
      std::vector<Varying> varying;
      std::map<Ranks, Ranks> by_held;  // held coordinates, in declared order -> ranks
      for (std::size_t i = 0; i < axes.size(); ++i) {
        if (mask >> i & 1) varying.emplace_back(axes[i].name);
      }
      for (std::int64_t r = 0; r < grid.size(); ++r) {
        Ranks held;
        for (std::size_t i = 0; i < axes.size(); ++i) {
          if ((mask >> i & 1) == 0) held.push_back(coordinates[r][i]);
        }
        by_held[held].push_back(offset + r);
      }
      const Family family = grid.family(varying);
      ASSERT_EQ(family.size(), static_cast<std::int64_t>(by_held.size()));
      std::int64_t index = 0;
      for (const auto& [held, ranks] : by_held) {
        ASSERT_EQ(family.set(index).to_vector(), ranks) << grid.to_string() << " mask " << mask;
        for (std::int64_t rank : ranks) {
          ASSERT_EQ(family.index_of(rank), index);
          ASSERT_EQ(grid.fiber(rank, mask), family.set(index));
        }
        ++index;
      }
      ++families;
    }
  }
  EXPECT_GT(families, 500);
}

TEST(Grid, RefusesBadAxesRanksAndNames) {
  EXPECT_CONFIG_ERROR((Grid{{"a", 0}}), "axis 'a' has size 0");
  EXPECT_CONFIG_ERROR((Grid{{"a", 2}, {"a", 2}}), "'a' is used 2 times");
  EXPECT_CONFIG_ERROR((Grid{{"", 2}}), "no name");
  EXPECT_CONFIG_ERROR((Grid{{"a", std::int64_t{1} << 40}, {"b", std::int64_t{1} << 40}}), "more ranks than 64 bits");
  EXPECT_CONFIG_ERROR(Grid(std::vector<GridAxis>(9, {"a", 1})), "9 axes; at most 8");
  const Grid grid{{"pipe", 2}, {"data", 3}};
  EXPECT_CONFIG_ERROR(grid.size("tensor"), "no axis 'tensor'; expected one of pipe=2,data=3");
  EXPECT_CONFIG_ERROR(grid.coordinates(6), "rank 6 is not in pipe=2,data=3; expected 0 to 5");
  EXPECT_CONFIG_ERROR(grid.rank(Ranks{0, 3}), "coordinate 3 on axis 'data'");
  EXPECT_CONFIG_ERROR(grid.rank(Ranks{0}), "1 coordinates for the 2 axes");
  EXPECT_CONFIG_ERROR(grid.fiber(0, {"data", "data"}), "'data' is named twice");
  EXPECT_CONFIG_ERROR(grid.family({"data"}, {"data"}), "name every axis once");
  EXPECT_CONFIG_ERROR(grid.family({"data"}).set(2), "no rank set 2 in a family of 2");
}

}  // namespace
}  // namespace espalier
