// SPDX-License-Identifier: Apache-2.0
// What is particular about the hierarchical backend, with threads that are told to be on several hosts; that it
// computes what all backends compute is the conformance suite's.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "espalier/base/error.hpp"
#include "espalier/comm/backends/hierarchical/hierarchical.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/threads.hpp"
#include "tests/support/expect.hpp"

namespace espalier {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::expect;
using Hosts = std::vector<std::int64_t>;

void on_hosts(const Hosts& hosts, const std::function<void(World&)>& body,
              milliseconds timeout = milliseconds(20'000)) {
  detail::run_threads(detail::make_hierarchical_transports_for_threads(hosts, {.timeout = timeout, .log = nullptr}),
                      Backend::hierarchical, body,
                      {.backend = Backend::hierarchical, .timeout = timeout, .log = nullptr}, hosts);
}

// What each rank's `body` throws.
std::vector<std::string> errors_of(const Hosts& hosts, const std::function<void(World&)>& body,
                                   milliseconds timeout = milliseconds(20'000)) {
  std::vector<std::string> errors(hosts.size(), "no error");
  on_hosts(
      hosts,
      [&](World& world) {
        try {
          body(world);
        } catch (const CommError& error) {
          errors[static_cast<std::size_t>(world.rank())] = error.what();
        }
      },
      timeout);
  return errors;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Every pair of place and host, hosts of one, hosts that differ, and orders in which hosts and ranks cross.
const std::vector<Hosts> kPlacements{{0, 0, 1, 1, 2, 2}, {0, 1, 2, 0, 1, 2}, {0, 1, 1, 0, 2, 2}, {0, 0, 0, 1, 1, 1},
                                     {0, 0, 0, 1, 1, 2}, {2, 1, 0, 0, 1, 0}, {0, 1, 2, 3, 4, 5}};

void check_every_way(World& world, std::int64_t count, at::ScalarType dtype) {
  const std::int64_t size = world.size();
  const auto data = [&](std::int64_t rank, std::int64_t elems) {
    return at::arange(elems, at::kLong).remainder(13).add(rank * 3 + 1).remainder(8).to(dtype);
  };
  at::Tensor sum = at::zeros({count}, at::kLong), all_sums = at::zeros({size * count}, at::kLong),
             largest = at::zeros({count}, at::kLong);
  std::vector<at::Tensor> inputs;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    inputs.push_back(data(rank, count));
    sum += inputs.back().to(at::kLong);
    largest = at::maximum(largest, inputs.back().to(at::kLong));
    all_sums += data(rank, size * count).to(at::kLong);
  }
  const at::Tensor& mine = inputs[static_cast<std::size_t>(world.rank())];
  const std::string what = fmt::format("{} {} x {}", world.rank(), c10::toString(dtype), count);

  at::Tensor reduced = mine.clone(), maximum = mine.clone(), part = at::empty({count}, dtype),
             gathered = at::empty({size * count}, dtype);
  Work works[] = {all_reduce_(reduced, world.group()), all_reduce_(maximum, world.group(), ReduceOp::max),
                  reduce_scatter_into(part, data(world.rank(), size * count), world.group()),
                  all_gather_into(gathered, mine, world.group())};
  wait_all(works);
  expect(reduced.equal(sum.to(dtype)), "all_reduce " + what);
  expect(maximum.equal(largest.to(dtype)), "max " + what);
  expect(part.equal(all_sums.narrow(0, world.rank() * count, count).to(dtype)), "reduce_scatter " + what);
  expect(gathered.equal(at::cat(inputs)), "all_gather " + what);
}

TEST(Hierarchical, ReducesAndGathersWhateverTheHosts) {
  for (const Hosts& hosts : kPlacements) {
    on_hosts(hosts, [](World& world) {
      for (const std::int64_t count : {0, 1, 2, 7, 1000, 100'003}) check_every_way(world, count, at::kFloat);
      for (const at::ScalarType dtype :
           {at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kByte, at::kBool}) {
        check_every_way(world, 5, dtype);
      }
    });
  }
}

TEST(Hierarchical, RoundsHalfPrecisionOnce) {
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 1}}) {
    on_hosts(hosts, [](World& world) {
      for (const auto& [dtype, large] : {std::pair{at::kHalf, 2048.0}, std::pair{at::kBFloat16, 256.0}}) {
        // Beside the large one a 1 is lost where it is added alone; three of them are not.
        at::Tensor tensor = at::full({3}, world.rank() == 0 ? large : 1.0, dtype), mean = tensor.clone();
        all_reduce_(tensor, world.group()).wait();
        expect(tensor[2].item<double>() == large + 4, fmt::format("sum {}", tensor[2].item<double>()));
        all_reduce_(mean, world.group(), ReduceOp::mean).wait();
        expect(mean[2].item<double>() == large / 4 + 1, fmt::format("mean {}", mean[2].item<double>()));
      }
    });
  }
}

TEST(Hierarchical, GroupsInsideAHostAreOfTheHostBackend) {
  on_hosts({0, 1, 0, 1}, [](World& world) {
    expect(world.local_rank() == world.rank() / 2 && world.local_size() == 2, "local rank");
    const Group here =
        world.make_group(RankSet::of(std::vector<std::int64_t>{world.rank() % 2, world.rank() % 2 + 2}), "here");
    expect(here.capabilities().int16_reductions && here.capabilities().uneven_all_gather, "capabilities of host");
    expect(!world.group().capabilities().int16_reductions && here.capabilities().names_dead_ranks,
           "capabilities between hosts");
    at::Tensor tensor = at::full({4}, double(world.rank()));
    all_reduce_(tensor, here).wait();
    expect(tensor[0].item<double>() == double(2 * (world.rank() % 2) + 2), "sum");
    // Messages take the same ways: inside to the one, between to the other.
    at::Tensor from_here = at::empty({1}), from_there = at::empty({1});
    const std::int64_t near = (world.rank() + 2) % 4, far = (world.rank() + 1) % 4;
    Work sends[] = {send(at::full({1}, double(world.rank())), world.group(), near, 5),
                    send(at::full({1}, double(world.rank())), world.group(), far, 5)};
    recv(from_here, world.group(), near, 5).wait();
    recv(from_there, world.group(), (world.rank() + 3) % 4, 5).wait();
    wait_all(sends);
    expect(from_here.item<double>() == double(near) && from_there.item<double>() == double((world.rank() + 3) % 4),
           "messages");
  });
}

TEST(Hierarchical, OperationsGoOnWhateverTheirRankDoesNext) {
  std::promise<void> others_are_done;
  std::shared_future<void> done = others_are_done.get_future().share();
  on_hosts({0, 0, 1, 1}, [&](World& world) {
    at::Tensor tensor = at::full({300'001}, double(world.rank() + 1));
    Work work = all_reduce_(tensor, world.group());
    if (world.rank() == 0) {  // calls nothing
      expect(done.wait_for(std::chrono::seconds(10)) == std::future_status::ready, "the others are done");
    }
    work.wait();
    if (world.rank() == 3) others_are_done.set_value();
    expect(tensor[300'000].item<double>() == 10, "sum");
  });
}

// Rank 0 waits for rank 2 on another host, which waits for rank 1, which waits for what rank 0 does on their host
// meanwhile.
TEST(Hierarchical, AHostGoesOnWhileARankWaitsForAnother) {
  const auto start = std::chrono::steady_clock::now();
  on_hosts({0, 0, 1}, [](World& world) {
    at::Tensor large = at::ones({20'000'000}), word = at::zeros({1});
    if (world.rank() == 2) {
      recv(word, world.group(), 1).wait();
      send(word, world.group(), 0).wait();
      return;
    }
    const Group here = world.make_group(RankSet::range(0, 2), "here");
    Work work = all_reduce_(large, here);
    if (world.rank() == 0) recv(word, world.group(), 2).wait();
    work.wait();
    if (world.rank() == 1) send(word, world.group(), 2).wait();
    expect(large[19'999'999].item<double>() == 2, "sum");
  });
  EXPECT_LT(seconds_since(start), 10.0);
}

TEST(Hierarchical, WhatNobodyWaitedForIsDoneBeforeTheWorldIsClosed) {
  std::vector<at::Tensor> sums(4);
  on_hosts({0, 0, 1, 1}, [&](World& world) {
    at::Tensor sum = at::ones({500'000});
    sums[static_cast<std::size_t>(world.rank())] = sum;
    if (world.rank() > 0) std::this_thread::sleep_for(milliseconds(100 * world.rank()));
    const Work dropped = all_reduce_(sum, world.group());
  });
  for (const at::Tensor& sum : sums) EXPECT_TRUE(sum.equal(at::full({500'000}, 4.0)));
}

TEST(Hierarchical, CallsThatDifferOnAHostAreNamedAtOnceOnAll) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> errors = errors_of({0, 0, 1, 1}, [](World& world) {
    const Group data = world.group().duplicate("data");
    at::Tensor tensor = at::zeros({4});
    if (world.rank() == 1) {
      broadcast_(tensor, data, 0).wait();
    } else {
      all_reduce_(tensor, data).wait();
    }
    barrier(data).wait();
  });
  EXPECT_LT(seconds_since(start), 5.0);
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("all_reduce(sum, float32 x 4) on rank "),
                             HasSubstr("broadcast(float32 x 4, root 0) on rank 1 ("), HasSubstr("group 'data' [0,1]")));
  }
  EXPECT_THAT(errors[2], HasSubstr("on host 0)"));
}

TEST(Hierarchical, DeadlinesNameWhoIsWaitedFor) {
  const auto late = [](std::int64_t late_rank) {
    return errors_of({0, 0, 1, 1}, [=](World& world) {
      at::Tensor tensor = at::zeros({8});
      barrier(world.group()).wait();
      if (world.rank() == late_rank) std::this_thread::sleep_for(milliseconds(1200));
      Work work = all_reduce_(tensor, world.group());
      world.rank() == 0 ? work.wait(milliseconds(300)) : work.wait();
    });
  };
  const std::vector<std::string> inside = late(1);
  EXPECT_THAT(inside[0],
              AllOf(HasSubstr("all_reduce(sum, float32 x 8) #0 of group 'world' [0,1,2,3] timed out after 3"),
                    HasSubstr("on rank 0, in reduce_scatter inside the host; waiting for rank 1 (thread of pid "),
                    HasSubstr("its last call is ")));
  const std::vector<std::string> between = late(2);
  EXPECT_THAT(between[0], HasSubstr("on rank 0, in all_reduce between hosts; waiting for rank 2"));
  for (const auto* errors : {&inside, &between}) {
    for (const std::string& error : *errors) EXPECT_THAT(error, HasSubstr("timed out after 3"));
  }
}

TEST(Hierarchical, AnErrorOfOneRankEndsTheWaitsInsideOtherHosts) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::string> errors(4);
  std::mutex mutex;
  EXPECT_THROW(on_hosts({0, 0, 1, 1},
                        [&](World& world) {
                          if (world.rank() == 3) {
                            std::this_thread::sleep_for(milliseconds(200));
                            throw std::runtime_error("rank 3 cannot read its file");
                          }
                          try {
                            at::Tensor tensor = at::empty({1});
                            recv(tensor, world.group(), world.rank() == 2 ? 3 : 1 - world.rank()).wait();
                          } catch (const CommError& error) {
                            const std::lock_guard lock(mutex);
                            errors[static_cast<std::size_t>(world.rank())] = error.what();
                          }
                        }),
               Error);
  EXPECT_LT(seconds_since(start), 5.0);
  for (const std::size_t rank : {0, 1, 2}) EXPECT_THAT(errors[rank], HasSubstr("rank 3 cannot read its file"));
}

}  // namespace
}  // namespace espalier
