// SPDX-License-Identifier: Apache-2.0
// What is particular about the gloo backend; that it computes what all backends compute is the
// conformance suite's.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "espalier/base/error.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "tests/support/expect.hpp"

namespace espalier {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing_support::expect;

WorldOptions gloo(milliseconds timeout = milliseconds(20000)) {
  return {.backend = Backend::gloo, .timeout = timeout, .log = nullptr};
}

std::string error_of(std::int64_t size, const std::function<void(World&)>& body, const WorldOptions& options = gloo()) {
  try {
    run_ranks(size, body, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Gloo, ReducesEveryDtype) {
  run_ranks(
      3,
      [](World& world) {
        for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                                           at::kShort, at::kChar, at::kByte, at::kBool}) {
          const std::string name = c10::toString(dtype);
          at::Tensor tensor = at::tensor({0, 1, 2, 3}).add(world.rank()).to(dtype);
          const at::Tensor expected =
              dtype == at::kBool ? at::ones({4}, at::kBool) : at::tensor({3, 6, 9, 12}).to(dtype);
          all_reduce_(tensor, world.group()).wait();
          expect(tensor.equal(expected), "all_reduce " + name);
          at::Tensor low = at::tensor({3, 2, 1}).sub(world.rank() == 0 ? 1 : 0).to(dtype);
          all_reduce_(low, world.group(), ReduceOp::min).wait();
          expect(low.equal(at::tensor({2, 1, 0}).to(dtype)), "min " + name);
          at::Tensor piece = at::empty({2}, dtype);
          reduce_scatter_into(piece, at::arange(6).add(1).to(dtype), world.group()).wait();
          const at::Tensor sums = dtype == at::kBool ? at::ones({6}, at::kBool) : at::arange(6).add(1).mul(3).to(dtype);
          expect(piece.equal(sums.narrow(0, 2 * world.rank(), 2)), "reduce_scatter " + name);
        }
      },
      gloo());
}

TEST(Gloo, GathersPartsOfDifferentSizes) {
  run_ranks(
      3,
      [](World& world) {
        std::vector<at::Tensor> parts{at::empty({0}, at::kShort), at::empty({5}, at::kShort),
                                      at::empty({2}, at::kShort)};
        const at::Tensor mine =
            at::full({parts[static_cast<std::size_t>(world.rank())].numel()}, world.rank(), at::kShort);
        all_gather_v(parts, mine, world.group()).wait();
        expect(parts[1].equal(at::full({5}, 1, at::kShort)) && parts[2].equal(at::full({2}, 2, at::kShort)), "parts");
      },
      gloo());
}

TEST(Gloo, SendsWithoutWaitingForTheReceiver) {
  run_ranks(
      2,
      [](World& world) {
        const std::int64_t other = 1 - world.rank();
        at::Tensor mine = at::full({1 << 20}, double(world.rank()));
        send(mine, world.group(), other, 1).wait();
        send(at::ones({3}), world.group(), other, 2).wait();
        mine.fill_(-1);
        at::Tensor first = at::empty({1 << 20}), second = at::empty({3});
        recv(second, world.group(), other, 2).wait();
        recv(first, world.group(), other, 1).wait();
        expect(first.equal(at::full({1 << 20}, double(other))) && second.equal(at::ones({3})), "messages");
      },
      gloo());
}

TEST(Gloo, CanBeAskedWhetherAMessageHasCome) {
  run_ranks(
      2,
      [](World& world) {
        at::Tensor tensor = at::zeros({2});
        if (world.rank() == 0) {
          barrier(world.group()).wait();
          send(at::ones({2}), world.group(), 1).wait();
        } else {
          Work work = recv(tensor, world.group(), 0);
          expect(!work.done(), "it came before it was sent");
          barrier(world.group()).wait();
          while (!work.done()) std::this_thread::sleep_for(milliseconds(1));
          expect(tensor.equal(at::ones({2})), "message");
        }
      },
      gloo());
}

TEST(Gloo, ConnectsGroupsThatOverlap) {
  run_ranks(
      3,
      [](World& world) {
        for (const auto& members : {RankSet::range(0, 2), RankSet::range(1, 2)}) {
          if (!members.contains(world.rank())) continue;
          const Group group = world.make_group(members, members.to_string());
          at::Tensor tensor = at::full({1}, double(world.rank()));
          all_reduce_(tensor, group).wait();
          expect(tensor.item<double>() == double(2 * members.member(0) + 1), "sum of " + group.name());
        }
      },
      gloo());
}

TEST(Gloo, NamesTheMemberThatDoesNotConnect) {
  const std::string text = error_of(
      3,
      [](World& world) {
        if (world.rank() == 2) {
          std::this_thread::sleep_for(milliseconds(2500));
        } else {
          (void)world.make_group(RankSet::range(0, 3), "all").duplicate("more");
        }
      },
      gloo(milliseconds(1500)));
  EXPECT_THAT(text, HasSubstr("group 'more' [0,1,2]: not connected within 1500 ms"));
  EXPECT_THAT(text, HasSubstr("rank 2 did not come"));
}

TEST(Gloo, NamesOperationGroupAndSenderAtTheDeadline) {
  const auto start = std::chrono::steady_clock::now();
  const std::string text = error_of(2, [](World& world) {
    at::Tensor tensor = at::zeros({4});
    barrier(world.group()).wait();
    if (world.rank() == 0) recv(tensor, world.group(), 1, 9).wait(milliseconds(100));
    if (world.rank() == 1) barrier(world.group()).wait();
  });
  EXPECT_THAT(text, HasSubstr("recv(float32 x 4) from rank 1, tag 9 #1 of group 'world' "
                              "[0,1] timed out after"));
  EXPECT_THAT(text, HasSubstr("waiting for rank 1"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
}

TEST(Gloo, EndsEveryWaitWhenARankGivesUp) {
  const auto start = std::chrono::steady_clock::now();
  const std::string text = error_of(3, [](World& world) {
    if (world.rank() == 1) throw std::runtime_error("out of coffee");
    at::Tensor tensor = at::zeros({4});
    try {
      recv(tensor, world.group(), world.rank() == 0 ? 2 : 0).wait();
    } catch (const CommError& error) {
      expect(std::string(error.what()).find("out of coffee") != std::string::npos, error.what());
      all_reduce_(tensor, world.group()).wait();
    }
  });
  EXPECT_THAT(text, HasSubstr("rank 1: out of coffee"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
}

TEST(Gloo, IsLeftWithoutWaitingForWhatNobodyAnswers) {
  const auto start = std::chrono::steady_clock::now();
  run_ranks(
      2,
      [](World& world) {
        at::Tensor tensor = at::zeros({4});
        if (world.rank() == 0) {
          {
            const Work dropped = all_reduce_(tensor, world.group());
          }
          {
            const Work dropped = recv(tensor, world.group(), 1);
          }
        }
        send(tensor, world.group(), 1 - world.rank(), 5).wait();  // both never received
      },
      gloo());
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
}

}  // namespace
}  // namespace espalier
