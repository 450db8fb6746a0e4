// SPDX-License-Identifier: Apache-2.0
// What a program can rely on when it runs ranks as threads.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "espalier/base/error.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/expect.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;
using testing_support::expect;

TEST(RunRanks, GivesEachThreadItsRankAndAWorldThatReduces) {
  for (const std::int64_t size : {1, 2, 3, 5}) {
    run_ranks(size, [&](World& world) {
      expect(world.size() == size, "size");
      for (const std::int64_t count : {0, 1, 7, 1000, 300'000}) {
        at::Tensor tensor = at::arange(count, at::kFloat) + world.rank();
        all_reduce_(tensor, world.group()).wait();
        expect(tensor.equal(at::arange(count, at::kFloat) * size + size * (size - 1) / 2), "all_reduce");
        tensor.fill_(world.rank());
        broadcast_(tensor, world.group(), size - 1).wait();
        expect(tensor.equal(at::full({count}, double(size - 1), at::kFloat)), "broadcast");
        if (size > 1) {
          at::Tensor received = at::empty({count});
          Work sent = send(at::arange(count, at::kFloat) + world.rank(), world.group(), (world.rank() + 1) % size, 5);
          recv(received, world.group(), (world.rank() + size - 1) % size, 5).wait();
          sent.wait();
          expect(received.equal(at::arange(count, at::kFloat) + (world.rank() + size - 1) % size), "send and recv");
        }
        barrier(world.group()).wait();
      }
    });
  }
}

// Rank 2 is stuck outside, rank 1 waits for it, rank 0 for rank 1: the first deadline leaves all of that in the file.
TEST(RunRanks, LeaveAPostmortemAtADeadline) {
  const testing_support::TemporaryFolder folder;
  const std::string path = folder.file("postmortem.json");
  std::atomic<bool> over = false;
  std::string text_of_rank_0;
  const std::string error = testing_support::error_of([&] {
    run_ranks(3,
              [&](World& world) {
                for (int i = 0; i < 70; ++i) barrier(world.group()).wait();
                at::Tensor tensor = at::zeros({4});
                if (world.rank() == 2) {
                  while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                  return;
                }
                try {
                  world.rank() == 0 ? recv(tensor, world.group(), 1).wait(std::chrono::milliseconds(500))
                                    : recv(tensor, world.group(), 2).wait();
                } catch (const CommError& trouble) {
                  if (world.rank() == 0) text_of_rank_0 = trouble.what();
                  over = true;
                  throw;
                }
              },
              {.backend = Backend::host, .log = nullptr, .postmortem = path});
  });
  EXPECT_THAT(error, HasSubstr("timed out"));
  EXPECT_THAT(text_of_rank_0, HasSubstr("waiting for rank 1 (thread of pid"));
  EXPECT_THAT(text_of_rank_0, HasSubstr("in turn rank 1 waits for rank 2; meanwhile rank 2 (thread of pid"));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  EXPECT_THAT(json["reason"].get<std::string>(),
              HasSubstr("recv(float32 x 4) from rank 1, tag 0, #0 of group 'world' [0,1,2] timed out after 5"));
  EXPECT_EQ(json["writer"], 0);
  ASSERT_EQ(json["ranks"].size(), 3u);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto& one = json["ranks"][rank];
    ASSERT_EQ(one["calls"].size(), 64u) << rank;
    EXPECT_EQ(one["calls"][0]["call"], "barrier()");
    EXPECT_EQ(one["calls"][0]["finished"], true);
    EXPECT_EQ(one["calls"][0]["number"], rank == 2 ? 6 : 7);
    EXPECT_EQ(one["calls"][63]["finished"], rank == 2) << rank;
    EXPECT_EQ(one.value("waits_for", std::vector<int>{}),
              (rank == 2 ? std::vector<int>{} : std::vector<int>{static_cast<int>(rank) + 1}))
        << rank;
  }
  EXPECT_EQ(json["ranks"][1]["state"], "waiting");
  EXPECT_EQ(json["ranks"][2]["state"], "running");
  EXPECT_GE(json["ranks"][1]["waits_ms"], 300);
}

TEST(RunRanks, RethrowsTheFirstErrorWithItsRankAndEndsTheOthers) {
  std::vector<std::string> of_others(3);
  try {
    run_ranks(3, [&](World& world) {
      if (world.rank() == 1) throw std::runtime_error("the model is on fire");
      of_others[static_cast<std::size_t>(world.rank())] =
          testing_support::error_of([&] { barrier(world.group()).wait(); });
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1: the model is on fire"));
  }
  for (const std::size_t rank : {0, 2}) EXPECT_THAT(of_others[rank], HasSubstr("gave up: the model is on fire"));
}

TEST(RunRanks, NamesTheRankThatLeavesBetweenTwoCollectives) {
  try {
    run_ranks(3, [](World& world) {
      barrier(world.group()).wait();
      if (world.rank() != 2) barrier(world.group()).wait();
    });
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 2 (thread of pid"));
    EXPECT_THAT(error.what(), HasSubstr("barrier() #1 of group 'world' [0,1,2]"));
  }
}

TEST(RunRanks, EndsAWorldWithItsBodyEvenWhenAGroupIsKept) {
  for (const Backend backend : {Backend::host, Backend::gloo}) {
    std::vector<Group> kept(2);
    const auto start = std::chrono::steady_clock::now();
    std::string of_the_peer;
    run_ranks(2,
              [&](World& world) {
                kept[static_cast<std::size_t>(world.rank())] = world.group().duplicate("data");
                at::Tensor tensor = at::zeros({4});
                all_reduce_(tensor, world.group()).wait();
                if (world.rank() == 0) return;  // its group lives on
                try {
                  all_reduce_(tensor, world.group()).wait();
                } catch (const CommError& error) {
                  of_the_peer = error.what();
                }
              },
              {.backend = backend, .timeout = std::chrono::milliseconds(30'000)});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(10'000));
    EXPECT_THAT(of_the_peer, HasSubstr(backend == Backend::host ? "rank 0 (thread of pid" : "all_reduce"));
    EXPECT_THAT(of_the_peer, HasSubstr(backend == Backend::host ? "has left: it closed its world" : "failed"));
    try {
      (void)barrier(kept[0]);
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("barrier on group 'data': rank 0 has closed its world"));
      EXPECT_THAT(error.what(), HasSubstr("only inside that body"));
    }
    EXPECT_THROW((void)kept[1].duplicate("more"), ConfigError);
  }
}

TEST(RunRanks, NamesBothCallsWhenRanksCallDifferentOperations) {
  try {
    run_ranks(2, [](World& world) {
      at::Tensor tensor = at::zeros({4});
      if (world.rank() == 0) {
        all_reduce_(tensor, world.group()).wait();
      } else {
        broadcast_(tensor, world.group(), 1).wait();
      }
    });
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("all_reduce(sum, float32 x 4)"));
    EXPECT_THAT(error.what(), HasSubstr("broadcast(float32 x 4, root 1)"));
  }
}

TEST(RunRanks, NamesWhoIsWaitedForAtTheDeadline) {
  try {
    run_ranks(2, [](World& world) {
      at::Tensor tensor = at::zeros({4});
      if (world.rank() == 0) recv(tensor, world.group(), 1, 9).wait(std::chrono::milliseconds(50));
      if (world.rank() == 1) barrier(world.group()).wait();
    });
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("recv(float32 x 4) from rank 1, tag 9, #0 of group 'world' [0,1] timed out after"));
    EXPECT_THAT(error.what(), HasSubstr("waiting for rank 1"));
  }
}

}  // namespace
}  // namespace espalier
