// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "espalier/comm/backends/host/arena.hpp"

namespace espalier::detail::host {
namespace {

void read_once(const Segment& segment, const Arena::Room& room) { segment.block(0, room.offset).readers.fetch_sub(1); }

TEST(HostArena, TakesTheLowestGapThatFitsOnceAllReadersAreThrough) {
  const auto segment = Segment::for_threads(1, 4096);
  Arena arena(*segment, 0);
  const Arena::Room first = arena.allocate(1000, 2);
  const Arena::Room second = arena.allocate(1000, 1);
  EXPECT_GT(second.offset, first.offset);
  EXPECT_EQ(arena.allocate(3000, 1).offset, 0u);
  read_once(*segment, first);
  EXPECT_FALSE(arena.released(first));
  EXPECT_GE(arena.allocate(900, 1).offset, second.offset + 1000);
  read_once(*segment, first);
  EXPECT_TRUE(arena.released(first));
  EXPECT_EQ(arena.allocate(900, 1).offset, first.offset);
}

TEST(HostArena, TellsABlockFromTheNextOneAtItsOffset) {
  const auto segment = Segment::for_threads(1, 4096);
  Arena arena(*segment, 0);
  const Arena::Room first = arena.allocate(1000, 1);
  read_once(*segment, first);
  const Arena::Room next = arena.allocate(1000, 1);
  ASSERT_EQ(next.offset, first.offset);
  EXPECT_TRUE(arena.released(first));
  EXPECT_FALSE(arena.released(next));
}

}  // namespace
}  // namespace espalier::detail::host
