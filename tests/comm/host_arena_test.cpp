// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "espalier/comm/backends/host/arena.hpp"
#include "espalier/comm/backends/host/buffers.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/comm/world.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/expect.hpp"

namespace espalier::detail::host {
namespace {

void read_once(const Segment& segment, const Arena::Room& room) { segment.block(0, room.offset).readers.fetch_sub(1); }

TEST(HostArena, TakesTheLowestGapThatFitsOnceAllReadersAreThrough) {
  const auto segment = Segment::for_threads(1, 4096, 0);
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
  const auto segment = Segment::for_threads(1, 4096, 0);
  Arena arena(*segment, 0);
  const Arena::Room first = arena.allocate(1000, 1);
  read_once(*segment, first);
  const Arena::Room next = arena.allocate(1000, 1);
  ASSERT_EQ(next.offset, first.offset);
  EXPECT_TRUE(arena.released(first));
  EXPECT_FALSE(arena.released(next));
}

TEST(HostBuffers, UseFreedMemoryAgainAndRefuseWhatDoesNotFit) {
  const auto segment = Segment::for_threads(2, 4096, 1 << 20);
  const auto buffers = std::make_shared<Buffers>(segment, 1, 1);
  at::Tensor first = buffers->make({100'000}, at::kFloat);
  const at::Tensor second = buffers->make({1000, 100}, at::kFloat);
  const auto refusal = [&] { return testing_support::error_of([&] { (void)buffers->make({100'000}, at::kFloat); }); };
  EXPECT_THAT(refusal(),
              testing::HasSubstr(
                  "host_buffer: 400000 bytes are asked for on rank 1, where 800000 of 1048576 bytes are in use"));
  EXPECT_THAT(refusal(), testing::HasSubstr("raise the limit"));
  const void* const place = first.const_data_ptr();
  at::Tensor part = first.narrow(0, 5, 10);
  first.reset();
  EXPECT_THAT(refusal(), testing::HasSubstr("where 800000 of"));  // the part still keeps it
  part.reset();
  EXPECT_EQ(buffers->make({100'000}, at::kFloat).const_data_ptr(), place);
  EXPECT_THAT(testing_support::error_of([&] { (void)buffers->make({-1}, at::kFloat); }),
              testing::HasSubstr("sizes [-1]; expected 0 or more"));
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_THAT(testing_support::error_of([&] { (void)buffers->make({huge, 4}, at::kFloat); }),
              testing::HasSubstr("more than can be counted"));
  EXPECT_EQ(buffers->make({0, 3}, at::kFloat).numel(), 0);
}

TEST(HostBuffers, KnowWhatLiesInThem) {
  const auto segment = Segment::for_threads(2, 4096, 1 << 20);
  const auto buffers = std::make_shared<Buffers>(segment, 1, 1), others = std::make_shared<Buffers>(segment, 0, 0);
  const at::Tensor tensor = buffers->make({100}, at::kFloat);
  EXPECT_EQ(buffers->place_of(tensor[10].const_data_ptr(), 360), 40u);
  EXPECT_FALSE(buffers->place_of(tensor.const_data_ptr(), (1 << 20) + 1).has_value());
  EXPECT_TRUE(buffers->place_of(tensor.const_data_ptr(), 1 << 20).has_value());
  EXPECT_FALSE(buffers->place_of(others->make({100}, at::kFloat).const_data_ptr(), 400).has_value());
  EXPECT_FALSE(buffers->place_of(at::zeros({100}).const_data_ptr(), 400).has_value());
}

TEST(HostBuffers, OutliveTheirWorldAndKeepToItsLimit) {
  std::vector<at::Tensor> kept(2);
  WorldOptions options;
  options.host_buffer_bytes = 4096;
  run_ranks(
      2,
      [&](World& world) {
        kept[static_cast<std::size_t>(world.rank())] = world.host_buffer({1000}, at::kFloat);
        const std::string text = testing_support::error_of([&] { (void)world.host_buffer({100}, at::kFloat); });
        testing_support::expect(text.find("400 bytes are asked for") != std::string::npos, text);
      },
      options);
  EXPECT_EQ(kept[1].fill_(2).sum().item<float>(), 2000);
  options.host_buffer_bytes = -1;
  EXPECT_THAT(testing_support::error_of([&] { run_ranks(2, [](World&) {}, options); }),
              testing::HasSubstr("host_buffer_bytes is -1; expected 0 to"));
}

}  // namespace
}  // namespace espalier::detail::host
