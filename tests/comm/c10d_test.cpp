// SPDX-License-Identifier: Apache-2.0
// Both bridges to c10d. That a world over a process group computes what all worlds compute is the conformance suite's,
// which also runs over a process group of ours.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "espalier/base/error.hpp"
#include "espalier/comm/backends/c10d/gloo.hpp"
#include "espalier/comm/c10d.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/rendezvous.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "tests/support/expect.hpp"

namespace espalier {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing_support::expect;
using BackendType = c10d::ProcessGroup::BackendType;
using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

const WorldOptions kQuiet{.backend = std::nullopt, .timeout = milliseconds(20'000), .log = nullptr};

ProcessGroupPtr process_group_over(const c10::intrusive_ptr<c10d::Store>& store, BackendType type,
                                   const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto process_group = c10::make_intrusive<c10d::ProcessGroup>(store, backend->getRank(), backend->getSize());
  process_group->setBackend(c10::kCPU, type, backend);
  process_group->setDefaultBackend(type);
  return process_group;
}

// A process group over a group of ours, as LibTorch's own programs would use it.
ProcessGroupPtr process_group_of(const Group& group) {
  return process_group_over(c10::make_intrusive<c10d::HashStore>(), BackendType::CUSTOM, as_c10d_backend(group));
}

// Runs `body` on threads, each with a process group over Gloo that the threads share; what they threw, by rank.
std::vector<std::string> run_on_process_groups(std::int64_t size,
                                               const std::function<void(const ProcessGroupPtr&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(process_group_over(
            store, BackendType::GLOO,
            detail::make_gloo_backend(c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank, size)));
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  threads.clear();  // joins
  return errors;
}

std::string config_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

at::Tensor reduced_by_c10d(const ProcessGroupPtr& process_group, double mine) {
  std::vector<at::Tensor> tensors{at::full({2}, mine)};
  process_group->allreduce(tensors)->wait();
  return tensors[0];
}

// ---- a program's process group as a world ----

TEST(FromC10d, UsesTheProgramsGroupAndLeavesItToTheProgram) {
  const auto errors = run_on_process_groups(3, [](const ProcessGroupPtr& process_group) {
    {
      const World world = World::from_c10d({process_group}, kQuiet);
      expect(world.backend() == Backend::c10d && world.launcher() == "c10d", "backend and launcher");
      expect(world.rank() == process_group->getRank() && world.size() == 3, "rank and size");
      expect(world.local_rank() == world.rank() && world.local_size() == 3 && world.host_of_rank().empty(), "one host");
      at::Tensor tensor = at::full({2}, double(world.rank()));
      all_reduce_(tensor, world.group()).wait();
      expect(tensor.equal(at::full({2}, 3.0)), "all_reduce_");
      const at::Tensor both = reduced_by_c10d(process_group, 1.0);  // in between, in the same order on all ranks
      expect(both.equal(at::full({2}, 3.0)), "the program's own allreduce");
      if (world.rank() != 1) {
        const Group outer = world.make_group(RankSet::of(std::vector<std::int64_t>{0, 2}), "outer");
        all_reduce_(tensor, outer).wait();
        expect(tensor.equal(at::full({2}, 6.0)), "all_reduce_ in a part");
      }
    }
    expect(reduced_by_c10d(process_group, 2.0).equal(at::full({2}, 6.0)), "after the world");
    const World second = World::from_c10d({process_group}, kQuiet);
    barrier(second.group()).wait();
  });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST(FromC10d, RefusesWhatItCannotUse) {
  EXPECT_THAT(config_error_of([] { (void)World::from_c10d({}, kQuiet); }), HasSubstr("the process group is null"));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto process_group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 2);
  EXPECT_THAT(config_error_of([&] { (void)World::from_c10d({process_group}, kQuiet); }),
              HasSubstr("no backend for CPU tensors (its devices: none); make it with one"));
  WorldOptions host = kQuiet;
  host.backend = Backend::host;
  EXPECT_THAT(config_error_of([&] { (void)World::from_c10d({process_group}, host); }),
              HasSubstr("WorldOptions::backend is host; expected none, or c10d"));
  run_ranks(2, [&](World& world) {
    const auto without_store = process_group_over(nullptr, BackendType::CUSTOM, as_c10d_backend(world.group()));
    const std::string text = config_error_of([&] { (void)World::from_c10d({without_store}, kQuiet); });
    expect(text.find("the process group has no store") != std::string::npos, text);
  });
}

TEST(FromC10d, NamesWhoDoesNotCome) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_on_process_groups(3, [](const ProcessGroupPtr& process_group) {
    if (process_group->getRank() == 1) return;
    WorldOptions options = kQuiet;
    options.timeout = milliseconds(500);
    (void)World::from_c10d({process_group}, options);
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 of 3 did not arrive within"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 of 3 did not arrive within"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
}

TEST(FromC10d, SaysWhatABackendNeedsThatMakesNoOthers) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(2, [&](World& below) {
    const auto process_group = process_group_over(store, BackendType::CUSTOM, as_c10d_backend(below.group()));
    const World world = World::from_c10d({process_group}, kQuiet);
    const std::string text = config_error_of([&] { (void)world.group().duplicate("twin"); });
    expect(text.find("group 'twin' [0,1]: the process group's backend espalier makes no groups") != std::string::npos,
           text);
    expect(text.find("set C10dGroup::make_backend") != std::string::npos, text);
    const World wrong =
        World::from_c10d({process_group,
                          [&](const auto&, const RankSet&, std::string_view) {
                            return as_c10d_backend(below.make_group(RankSet::single(below.rank()), "alone"));
                          }},
                         kQuiet);
    const std::string size = config_error_of([&] { (void)wrong.group().duplicate("twin"); });
    expect(size.find("gave one of rank 0 of 1; expected a backend of rank") != std::string::npos, size);
    barrier(world.group()).wait();
  });
}

TEST(FromC10d, EndsTheWaitsOfAllWhenARankGivesUp) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run_on_process_groups(3, [](const ProcessGroupPtr& process_group) {
    const World world = World::from_c10d({process_group}, kQuiet);
    at::Tensor tensor = at::zeros({4});
    if (world.rank() == 1) recv(tensor, world.group(), 0, 7).wait(milliseconds(200));
    all_reduce_(tensor, world.group()).wait();
  });
  EXPECT_THAT(errors[1], HasSubstr("recv(float32 x 4) from rank 0, tag 7 #0 of group 'world' [0,1,2] timed out after"));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 reported: recv(float32 x 4)"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 reported: recv(float32 x 4)"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
}

// ---- a world at a store ----

TEST(WorldAt, BringsTogetherWhoMeetsAtAStore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THAT(config_error_of([&] { (void)world_at(store, 2, 2, kQuiet); }), HasSubstr("a store and rank 2 of 2"));
  WorldOptions mpi = kQuiet;
  mpi.backend = Backend::mpi;
  EXPECT_THAT(config_error_of([&] { (void)world_at(store, 0, 2, mpi); }), HasSubstr("WorldOptions::backend is mpi"));
  WorldOptions gloo = kQuiet;
  gloo.backend = Backend::gloo;
  run_ranks(3, [&](World& outer) {
    const World world = world_at(store, outer.rank(), 3, gloo);
    at::Tensor tensor = at::full({2}, double(world.rank()));
    all_reduce_(tensor, world.group()).wait();
    expect(tensor.equal(at::full({2}, 3.0)), "all_reduce_");
    const World alone = world_at(store, 0, 1, kQuiet);
    expect(alone.size() == 1, "a world of one");
  });
}

// ---- a meeting at a store ----

// Serves so many requests and no more, as if the rank that makes them had been killed.
class MortalStore final : public c10d::PrefixStore {
 public:
  MortalStore(const c10::intrusive_ptr<c10d::Store>& store, std::size_t requests)
      : PrefixStore("", store), left_(requests) {}

  using PrefixStore::wait;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override { next().set(key, value); }
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override {
    return next().compareSet(key, expected, desired);
  }
  std::vector<std::uint8_t> get(const std::string& key) override { return next().get(key); }
  std::int64_t add(const std::string& key, std::int64_t value) override { return next().add(key, value); }
  bool check(const std::vector<std::string>& keys) override { return next().check(keys); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override { next().wait(keys, timeout); }

 private:
  c10d::Store& next() {
    if (left_ == 0) throw std::runtime_error("killed");
    --left_;
    return *store_;
  }
  std::size_t left_;
};

TEST(Meeting, NamesWhoIsSilentFromAnyRequestOn) {
  constexpr std::size_t kRequests = 30;  // more than a rank makes
  std::vector<std::vector<std::string>> errors(kRequests + 1, std::vector<std::string>(3));
  std::vector<std::jthread> threads;
  for (std::size_t requests = 0; requests <= kRequests; ++requests) {
    const auto shared = c10::make_intrusive<c10d::HashStore>();
    for (std::size_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&error = errors[requests][rank], shared, requests, rank] {
        const auto store = std::make_shared<detail::C10dStore>(
            c10::make_intrusive<MortalStore>(shared, rank == 1 ? requests : 10'000));
        try {
          (void)detail::gather(store, static_cast<std::int64_t>(rank), detail::this_participant(3, ""), "here",
                               milliseconds(2000));
        } catch (const std::exception& trouble) {
          error = trouble.what();
        }
      });
    }
  }
  threads.clear();  // joins
  EXPECT_THAT(errors.front()[0], HasSubstr("rank 1 of 3 did not arrive"));
  std::size_t num_ended_between = 0;
  for (const std::vector<std::string>& three : errors) {
    EXPECT_EQ(three[0], three[2]);
    if (!three[0].empty()) {
      EXPECT_THAT(three[0], HasSubstr("rank 1 "));
    }
    num_ended_between += three[0].find("arrived but") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(num_ended_between, 0U);
  EXPECT_THAT(errors.back(), testing::Each(""));
}

// ---- a group as a backend of c10d ----

at::Tensor numbers(std::int64_t rank, std::int64_t count) { return at::arange(count, at::kLong) + 100 * rank; }

TEST(C10dBackend, HasTheOperationsOfC10d) {
  run_ranks(3, [](World& world) {
    const auto process_group = process_group_of(world.group());
    const std::int64_t rank = world.rank();
    std::vector<at::Tensor> parts;
    for (std::int64_t member = 0; member < 3; ++member) parts.push_back(at::empty({4}, at::kLong));

    std::vector<at::Tensor> mine{numbers(rank, 4)};
    std::vector<std::vector<at::Tensor>> lists{parts};
    process_group->allgather(lists, mine)->wait();
    for (std::int64_t member = 0; member < 3; ++member)
      expect(lists[0][static_cast<std::size_t>(member)].equal(numbers(member, 4)), "allgather");

    c10d::ReduceOptions to_last;
    to_last.rootRank = 2;
    std::vector<at::Tensor> reduced{numbers(rank, 4)};
    process_group->reduce(reduced, to_last)->wait();
    expect(reduced[0].equal(rank == 2 ? numbers(1, 4) * 3 : numbers(rank, 4)), "reduce");

    c10d::GatherOptions at_one;
    at_one.rootRank = 1;
    for (const at::Tensor& part : parts) part.fill_(-1);
    std::vector<std::vector<at::Tensor>> gathered;
    if (rank == 1) gathered.push_back(parts);
    process_group->gather(gathered, mine, at_one)->wait();
    for (std::int64_t member = 0; member < 3; ++member)
      expect(rank != 1 || parts[static_cast<std::size_t>(member)].equal(numbers(member, 4)), "gather");

    c10d::ScatterOptions from_one;
    from_one.rootRank = 1;
    std::vector<std::vector<at::Tensor>> dealt;
    if (rank == 1) dealt.push_back({numbers(5, 4), numbers(6, 4), numbers(7, 4)});
    std::vector<at::Tensor> share{at::empty({2, 2}, at::kLong)};
    process_group->scatter(share, dealt, from_one)->wait();
    expect(share[0].view({4}).equal(numbers(5 + rank, 4)), "scatter");

    std::vector<at::Tensor> sum{at::empty({4}, at::kLong)};
    std::vector<std::vector<at::Tensor>> addends{{numbers(rank, 4), numbers(rank + 1, 4), numbers(rank + 2, 4)}};
    process_group->reduce_scatter(sum, addends)->wait();
    expect(sum[0].equal(numbers(1 + rank, 4) * 3), "reduce_scatter");

    // Member j gets j + 1 numbers from each; they come in lists.
    std::vector<at::Tensor> inputs{numbers(rank, 1), numbers(rank, 2), numbers(rank, 3)};
    std::vector<at::Tensor> outputs;
    for (int member = 0; member < 3; ++member) outputs.push_back(at::empty({rank + 1}, at::kLong));
    process_group->alltoall(outputs, inputs)->wait();
    for (std::int64_t member = 0; member < 3; ++member)
      expect(outputs[static_cast<std::size_t>(member)].equal(numbers(member, rank + 1)), "alltoall");

    std::vector<at::Tensor> several{at::full({2}, 1.0), at::full({3}, double(rank))};
    process_group->allreduce_coalesced(several)->wait();
    expect(several[0].equal(at::full({2}, 3.0)) && several[1].equal(at::full({3}, 3.0)), "allreduce_coalesced");
    c10d::AllreduceOptions mean;
    mean.reduceOp = c10d::ReduceOp::AVG;
    std::vector<at::Tensor> average{at::full({2}, double(rank))};
    process_group->allreduce(average, mean)->wait();
    expect(average[0].equal(at::ones({2})), "the average");
    process_group->barrier()->wait();
  });
}

TEST(C10dBackend, SaysWhatThereIsWhenAskedForWhatThereIsNot) {
  run_ranks(2, [](World& world) {
    const auto backend = as_c10d_backend(world.group());
    std::vector<at::Tensor> tensors{at::zeros({2})};
    const auto refuses = [](std::string_view part, const std::function<void()>& action) {
      const std::string text = config_error_of(action);
      expect(text.find(part) != std::string::npos, text);
    };
    refuses(
        "recvAnysource on backend 'espalier' of group 'world': there is no such operation; there are allreduce, broadcast,",
        [&] { backend->recvAnysource(tensors, 0); });
    refuses("allreduce_sparse on backend", [&] { backend->allreduce_sparse(tensors); });
    refuses("split on backend 'espalier' of group 'world': there is no such operation",
            [&] { backend->split(nullptr, {0}, nullptr); });
    c10d::AllreduceOptions premultiplied;
    premultiplied.reduceOp = c10d::makePreMulSum(2.0);
    refuses("there is no reduction number 8; expected SUM,", [&] { backend->allreduce(tensors, premultiplied); });
    std::vector<at::Tensor> two{at::zeros({2}), at::zeros({2})};
    refuses("allreduce on backend 'espalier' of group 'world': 2 lists or tensors; expected 1",
            [&] { backend->allreduce(two); });
    c10d::ReduceOptions nobody;
    nobody.rootRank = 2;
    refuses("root 2 is not in the group; it has 2 members, ranks 0 to 1", [&] { backend->reduce(tensors, nobody); });
    refuses("1 tensors; expected one for each of 2 members", [&] { backend->alltoall(tensors, tensors); });
    refuses("cannot send to itself", [&] { backend->send(tensors, static_cast<int>(world.rank()), 0); });
    backend->barrier()->wait();  // nothing was sent
  });
  EXPECT_THAT(config_error_of([] { (void)as_c10d_backend(Group()); }), HasSubstr("the group is empty"));
}

// The future of a receive does not keep the others' from being completed, and an error reaches a future.
TEST(C10dBackend, CompletesFuturesAsTheirResultsCome) {
  run_ranks(
      2,
      [](World& world) {
        const auto backend = as_c10d_backend(world.group());
        std::vector<at::Tensor> message{at::zeros({2})}, sum{at::full({2}, double(1 + world.rank()))};
        if (world.rank() == 0) {
          const auto received = backend->recv(message, 1, 0)->getFuture();
          const auto reduced = backend->allreduce(sum)->getFuture();
          reduced->waitAndThrow();
          expect(sum[0].equal(at::full({2}, 3.0)) && !received->completed(), "the sum, before the message");
          expect(reduced->value().toTensorVector()[0].is_same(sum[0]), "the future's value");
          backend->barrier()->wait();
          received->waitAndThrow();
          expect(message[0].equal(at::full({2}, 7.0)), "the message");
        } else {
          backend->allreduce(sum)->wait();
          backend->barrier()->wait();
          message[0].fill_(7);
          backend->send(message, 0, 0)->wait();
        }
      },
      kQuiet);
}

TEST(C10dBackend, TellsTheFutureOfAnError) {
  std::vector<std::string> seen(2);
  std::atomic<bool> asked = false;
  try {
    run_ranks(
        2,
        [&](World& world) {
          const auto backend = as_c10d_backend(world.group());
          std::vector<at::Tensor> tensors{at::zeros({2})};
          if (world.rank() == 1) {
            while (!asked) std::this_thread::sleep_for(milliseconds(1));
            throw std::runtime_error("out of coffee");
          }
          const auto work = backend->allreduce(tensors);
          const auto future = work->getFuture();
          asked = true;
          future->wait();
          expect(future->hasError() && work->isCompleted() && !work->isSuccess(), "an error");
          seen[0] = future->tryRetrieveErrorMessage();
          try {
            work->wait();
          } catch (const CommError& error) {
            seen[1] = error.what();
          }
        },
        kQuiet);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("out of coffee"));
  }
  EXPECT_THAT(seen, testing::Each(HasSubstr("out of coffee")));
}

TEST(C10dBackend, EndsTheWaitsOfOthersWhenItIsAborted) {
  std::string text = "no error";
  try {
    run_ranks(
        2,
        [&](World& world) {
          const auto backend = as_c10d_backend(world.group());
          if (world.rank() == 1) return backend->abort();
          try {
            backend->barrier()->wait();
          } catch (const CommError& error) {
            text = error.what();
          }
        },
        kQuiet);
  } catch (const CommError&) {  // the world that was aborted
  }
  EXPECT_THAT(text, HasSubstr("rank 1 has aborted its process group"));
}

TEST(C10dBackend, KeepsToADeadline) {
  const auto start = std::chrono::steady_clock::now();
  run_ranks(
      2,
      [](World& world) {
        std::vector<at::Tensor> tensors{at::zeros({2})};
        const Group twin = world.group().duplicate("twin");
        if (world.rank() == 1) {
          try {
            barrier(twin).wait();
          } catch (const CommError&) {
          }
          return;
        }
        const auto backend = as_c10d_backend(twin);
        backend->setTimeout(milliseconds(200));
        std::string text = "no error";
        try {
          backend->recv(tensors, 1, 0)->wait();
        } catch (const CommError& error) {
          text = error.what();
        }
        expect(text.find("timed out after 2") != std::string::npos, text);
      },
      kQuiet);
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
}

// LibTorch's own data parallelism: two layers, a batch of 8 rows dealt out to the ranks, small integers so that sums
// are exact.
struct Layers {
  std::vector<at::Tensor> parameters;
  Layers() {
    const auto weights = [](std::int64_t rows, std::int64_t columns) {
      return at::arange(rows * columns, at::kDouble).remainder(5).sub(2).view({rows, columns});
    };
    parameters = {weights(6, 4), at::ones({6}, at::kDouble), weights(2, 6), at::zeros({2}, at::kDouble)};
    for (at::Tensor& parameter : parameters) parameter.set_requires_grad(true);
  }
  at::Tensor loss(const at::Tensor& input) const {
    const at::Tensor hidden = at::linear(input, parameters[0], parameters[1]).relu();
    return at::linear(hidden, parameters[2], parameters[3]).square().sum(1).mean();
  }
};

class ReducerTest : public testing::TestWithParam<std::int64_t> {};

TEST_P(ReducerTest, GivesTheGradientsOfOneProcess) {
  const std::int64_t size = GetParam();
  const at::Tensor batch = at::arange(32, at::kDouble).remainder(7).sub(3).view({8, 4});
  const Layers alone;
  std::vector<at::Tensor> expected;
  for (int step = 0; step < 2; ++step) alone.loss(batch).backward();  // both steps' gradients together
  for (const at::Tensor& parameter : alone.parameters) expected.push_back(parameter.grad());

  run_ranks(size, [&](World& world) {
    const Layers layers;
    // Two buckets; the last parameters come first.
    c10d::Reducer reducer(layers.parameters, {{3, 2}, {1, 0}}, process_group_of(world.group()),
                          std::vector<bool>(4, false), 25 << 20, false, false, {}, 1 << 20, false, false, {});
    const at::Tensor rows = batch.chunk(size)[static_cast<std::size_t>(world.rank())];
    for (int step = 0; step < 2; ++step) {
      reducer.prepare_for_forward();
      const at::Tensor loss = layers.loss(rows);
      reducer.prepare_for_backward({loss});
      std::vector<at::Tensor> before;
      for (const at::Tensor& parameter : layers.parameters)
        before.push_back(step == 0 ? at::zeros_like(parameter) : parameter.grad().clone());
      for (const at::Tensor& parameter : layers.parameters) parameter.mutable_grad() = at::Tensor();
      loss.backward();
      for (std::size_t i = 0; i < before.size(); ++i) layers.parameters[i].mutable_grad().add_(before[i]);
    }
    for (std::size_t i = 0; i < expected.size(); ++i)
      expect(layers.parameters[i].grad().equal(expected[i]), "gradient " + std::to_string(i));
  });
}

INSTANTIATE_TEST_SUITE_P(C10dBackend, ReducerTest, testing::Values(1, 2, 4));

}  // namespace
}  // namespace espalier
