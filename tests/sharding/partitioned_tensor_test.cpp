// SPDX-License-Identifier: Apache-2.0
// Over every backend: round trips of all small sizes, the reference's own tests, gradients; and metadata that lie.
#include "espalier/sharding/partitioned_tensor.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "espalier/comm/collectives.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/expect.hpp"

namespace espalier {
namespace {

using testing_support::expect;
using Shape = std::vector<std::int64_t>;

// 0, 1, 2, ... in this shape.
at::Tensor iota(const Shape& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  return at::arange(elements, at::kLong).reshape(shape);
}

class PartitionedTensorOver : public ::testing::TestWithParam<Backend> {
 protected:
  WorldOptions options() const {
    return {.backend = GetParam(), .timeout = std::chrono::milliseconds(30'000), .log = nullptr};
  }
};

INSTANTIATE_TEST_SUITE_P(, PartitionedTensorOver, ::testing::Values(Backend::host, Backend::gloo),
                         [](const auto& backend) { return std::string(to_string(backend.param)); });

TEST_P(PartitionedTensorOver, ComesBackWholeForEverySizeUpToThreeElementsAPart) {
  for (const std::int64_t ranks : {1, 3, 4}) {
    run_ranks(
        ranks,
        [&](World& world) {
          for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kInt, at::kBool}) {
            for (std::int64_t elements = 0; elements <= 3 * ranks; ++elements) {
              const at::Tensor whole = at::arange(elements, at::kLong).remainder(2).to(dtype);
              const PartitionedTensor part(whole, world.group());
              const at::Tensor again =
                  PartitionedTensor::from_meta(part.to_versioned_meta(), part.local_data(), world.group()).full();
              expect(part.full().equal(whole) && again.equal(whole) && again.scalar_type() == dtype,
                     std::to_string(elements) + " elements");
            }
          }
        },
        options());
  }
}

// The reference's two tests, each on 4 ranks: a random matrix that rank 0 hands to all.
at::Tensor random_from_rank_0(std::int64_t rows, std::int64_t columns, const Group& group) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(group.rank()));
  at::Tensor matrix = at::rand({rows, columns}, generator);
  broadcast_(matrix, group, 0).wait();
  return matrix;
}

TEST_P(PartitionedTensorOver, CutsAMatrixAndGathersItEvenOrNot) {
  run_ranks(
      4,
      [](World& world) {
        const Group group = world.make_group(RankSet::range(0, 4), "all");
        const at::Tensor even = random_from_rank_0(4 * 4, 3, group);
        const PartitionedTensor part(even, group);
        expect(part.local_data().dim() == 1 && part.local_size() * group.size() == even.numel(), "local size");
        expect(!part.local_data().is_alias_of(even), "a copy");
        expect(part.full().equal(even), "even");
        const at::Tensor uneven = random_from_rank_0(4 * 4 - 1, 5, group);
        expect(PartitionedTensor(uneven, group).full().equal(uneven), "uneven");
        expect(PartitionedTensor(uneven.t(), group).full().equal(uneven.t()), "not contiguous");
      },
      options());
}

TEST_P(PartitionedTensorOver, ComesBackFromItsMetadata) {
  run_ranks(
      4,
      [](World& world) {
        const Group group = world.make_group(RankSet::range(0, 4), "all");
        const at::Tensor full = random_from_rank_0(4 * 7, 3, group);
        const PartitionedTensor part(full, group);
        expect(PartitionedTensor::from_meta(part.to_meta(), part.local_data(), group).full().equal(full), "meta");
      },
      options());
}

TEST_P(PartitionedTensorOver, IsGatheredInAGroupThatDoesNotBeginWithRank0) {
  run_ranks(
      4,
      [](World& world) {
        if (world.rank() % 2 == 0) return;
        const at::Tensor whole = iota({3, 5});
        expect(PartitionedTensor(whole, world.make_group(RankSet::of(Shape{1, 3}), "odd")).full().equal(whole),
               "odd ranks");
      },
      options());
}

// Member r's loss is (r+1) * sum of i * whole[i], so a part's gradient is (1 + 2 + 3) * i, whoever holds it.
TEST_P(PartitionedTensorOver, AddsTheGradientsOfAllMembersWholes) {
  run_ranks(
      3,
      [](World& world) {
        for (const std::int64_t elements : {7, 6, 2}) {
          const at::Tensor index = at::arange(elements, at::kDouble);
          at::Tensor source = at::ones({1, elements}, at::kDouble).set_requires_grad(true);
          const PartitionedTensor cut(source, world.group());
          const PartitionedTensor rebuilt =
              PartitionedTensor::from_meta(cut.to_versioned_meta(), cut.local_data().detach(), world.group());
          for (const PartitionedTensor* part : {&cut, &rebuilt}) {
            (part->full() * index * (world.rank() + 1)).sum().backward();
          }
          const std::int64_t from = cut.partition()[static_cast<std::size_t>(world.rank())];
          const at::Tensor mine = 6 * index.narrow(0, from, cut.local_size());
          expect(rebuilt.local_data().is_leaf() && rebuilt.local_data().grad().equal(mine), "rebuilt");
          expect(source.grad().narrow(1, from, cut.local_size()).equal(mine.view({1, -1})), "cut");
          expect(source.grad().sum().equal(mine.sum()), "parts of others");
        }
      },
      options());
}

TEST(PartitionedTensor, RequiresAGradientAsTheWholeAndTheMetadataDo) {
  run_ranks(1, [](World& world) {
    const at::Tensor whole = at::arange(5, at::kFloat).set_requires_grad(true);
    const PartitionedTensor part(whole, world.group());
    const at::Tensor data = part.local_data().detach();
    const auto rebuilt = [&](const at::Tensor& meta) {
      return PartitionedTensor::from_meta(meta, data, world.group()).local_data().requires_grad();
    };
    expect(part.local_data().requires_grad() && part.full().requires_grad(), "cut");
    expect(rebuilt(part.to_versioned_meta()) && !rebuilt(part.to_meta()), "rebuilt");
    const at::NoGradGuard no_grad;
    expect(!PartitionedTensor(whole, world.group()).local_data().requires_grad() && !part.full().requires_grad(),
           "no grad mode");
  });
}

TEST(PartitionedTensor, RefusesMetadataThatLie) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  run_ranks(2, [](World& world) {
    if (world.rank() != 0) return;
    const Group& group = world.group();
    const at::Tensor local = at::empty({4}, at::kFloat);
    constexpr std::int64_t kMagic = PartitionedTensor::kMagic;
    struct Lie {
      Shape meta;
      std::string text;
    };
    const std::vector<Lie> lies{
        {{}, "the metadata are empty"},
        {{1}, "1 numbers of metadata for 1 dimensions; expected at least 6"},
        {{-1, 2, 0, 0, 4, 7}, "say -1 dimensions; expected 0 to 64"},
        {{kMax, 2, 0, 0, 4, 7}, "dimensions; expected 0 to 64"},
        {{1, 7, kMax, 0, 0, 4, 7}, "parts in 7 numbers of metadata for 1 dimensions; expected 2 parts"},
        {{1, 7, 2, 0, 0, 4, 7, 7}, "2 parts in 8 numbers of metadata for 1 dimensions; expected 3 parts"},
        {{1, 7, 3, 0, 0, 4, 6, 7}, "of part 0 of 3, but this is rank 0 of group 'world' of 2"},
        {{1, 7, 2, 1, 0, 4, 7}, "of part 1 of 2, but this is rank 0"},
        {{1, -7, 2, 0, 0, 4, 7}, "have the shape [-7]; expected sizes from 0"},
        {{2, kHuge, 4, 2, 0, 0, 4, 0},
         "the shape [4611686018427387904,4] of the metadata, of 4 bytes each, is beyond 64 bits"},
        {{3, 0, kHuge, 4, 2, 0, 0, 0, 0}, "is beyond 64 bits"},
        {{1, 7, 2, 0, 0, 4, 8}, "the metadata cut 7 elements at [0,4,8]; expected [0,4,7]"},
        {{1, 7, 2, 0, 1, 4, 7}, "at [1,4,7]"},
        {{1, 7, 2, 0, 0, 9, 7}, "at [0,9,7]"},
        {{1, 7, 2, 0, 0, -4, 7}, "at [0,-4,7]"},
        {{1, kMax / 4, 2, 0, 0, 4, kMax / 4}, "at [0,4,2305843009213693951]"},
        {{1, 9, 2, 0, 0, 5, 9}, "part 0 has 5 elements in the metadata, but 4 are here"},
        {{kMagic, 1, 6}, "3 numbers of versioned metadata; expected more than 4"},
        {{kMagic, 2, 6, 0, 1, 7, 2, 0, 0, 4, 7}, "of version 2; this program reads version 1"},
        {{kMagic, 1, 7, 0, 1, 7, 2, 0, 0, 4, 7}, "of dtype 7, the part is of dtype 6 (Float)"},
        {{kMagic, 1, 6, 2, 1, 7, 2, 0, 0, 4, 7}, "requires_grad is 2"},
        {{kMagic, 1, 6, 0}, "4 numbers of versioned metadata; expected more than 4"},
    };
    const auto refusal = [&](const at::Tensor& meta, const at::Tensor& part) {
      return testing_support::error_of([&] { (void)PartitionedTensor::from_meta(meta, part, group); });
    };
    for (const Lie& lie : lies) {
      const std::string text = refusal(at::tensor(lie.meta), local);
      expect(text.find(lie.text) != std::string::npos, lie.text + ": " + text);
    }
    const at::Tensor good = at::tensor(Shape{1, 7, 2, 0, 0, 4, 7});
    expect(refusal(good, local) == "no error", "good metadata");
    expect(refusal(good.to(at::kInt), local).find("a 1-dimensional Int tensor") != std::string::npos, "int32 metadata");
    expect(refusal(good, at::Tensor()).find("the part is undefined") != std::string::npos, "no part");
    const at::Tensor of_integers = at::tensor(Shape{kMagic, 1, 4, 1, 1, 7});
    expect(refusal(of_integers, at::empty({4}, at::kLong))
                   .find("requires_grad is 1 in the metadata of a part of dtype Long") != std::string::npos,
           "gradients of integers");
  });
}

}  // namespace
}  // namespace espalier
