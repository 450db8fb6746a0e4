// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "espalier/parallel/compress/kernels.hpp"

namespace espalier::detail {
namespace {

template <class T>
class CompressKernelsTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(CompressKernelsTest, Types);

// Around the widths of vectors, sums and blocks.
const std::vector<std::int64_t> kCounts{0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 127, 511, 512, 513, 519, 520, 1025, 4099};

template <class T>
std::vector<T> numbers(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<T> normal;
  std::vector<T> result(static_cast<std::size_t>(count));
  for (T& number : result) number = engine() % 5 == 0 ? T{0} : normal(engine);
  for (std::size_t i = 0; i < result.size(); i += 11) result[i] = -T{0};
  return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

std::size_t num_bytes(std::int64_t count) { return static_cast<std::size_t>((count + 7) / 8); }

TYPED_TEST(CompressKernelsTest, CompressLikeTheReferenceBitByBit) {
  const auto reference = compress_kernels<TypeParam>(KernelKind::reference);
  for (const KernelKind kind : {KernelKind::portable, KernelKind::fastest}) {
    const auto kernels = compress_kernels<TypeParam>(kind);
    for (const std::int64_t count : kCounts) {
      const auto values = numbers<TypeParam>(count, 3);
      auto elements = numbers<TypeParam>(count, 4), expected_elements = elements;
      std::vector<std::uint8_t> bits(num_bytes(count) + 1, 0x5a), expected_bits = bits;  // one byte more: it must stay
      const auto scale = static_cast<TypeParam>(0.7);
      const double squares = kernels.compress(values.data(), elements.data(), scale, bits.data(), count);
      EXPECT_EQ(squares,
                reference.compress(values.data(), expected_elements.data(), scale, expected_bits.data(), count))
          << count;
      EXPECT_EQ(bits, expected_bits) << count;
      EXPECT_EQ(bits.back(), 0x5a) << count;
      EXPECT_TRUE(same_bits(elements, expected_elements)) << count;
    }
  }
}

TYPED_TEST(CompressKernelsTest, ExpandLikeTheReferenceBitByBit) {
  const auto reference = compress_kernels<TypeParam>(KernelKind::reference);
  for (const KernelKind kind : {KernelKind::portable, KernelKind::fastest}) {
    const auto kernels = compress_kernels<TypeParam>(kind);
    for (const std::int64_t count : kCounts) {
      for (std::size_t num_sources = 1; num_sources <= 5; ++num_sources) {
        std::mt19937 engine(5);
        std::vector<std::vector<std::uint8_t>> bits(num_sources, std::vector<std::uint8_t>(num_bytes(count)));
        std::vector<const std::uint8_t*> sources;
        for (auto& one : bits) {
          for (auto& byte : one) byte = static_cast<std::uint8_t>(engine());
          sources.push_back(one.data());
        }
        const auto scales = numbers<TypeParam>(static_cast<std::int64_t>(num_sources), 6);
        auto values = numbers<TypeParam>(count + 1, 7), expected = values;  // one element more: it must stay
        kernels.expand_sum(sources, scales, values.data(), count);
        reference.expand_sum(sources, scales, expected.data(), count);
        EXPECT_TRUE(same_bits(values, expected)) << count << " elements, " << num_sources << " sources";
        EXPECT_TRUE(same_bits<TypeParam>({values.back()}, {numbers<TypeParam>(count + 1, 7).back()})) << count;
      }
    }
  }
}

TYPED_TEST(CompressKernelsTest, PutTheFirstElementInTheHighestBitAndCountZeroAsPositive) {
  const std::vector<TypeParam> values{1, -2, TypeParam{0}, -TypeParam{0}, -3, 4, -5, -6, -7, 8};
  for (const KernelKind kind : {KernelKind::reference, KernelKind::portable, KernelKind::fastest}) {
    std::vector<TypeParam> elements(values.size(), TypeParam{0});
    std::vector<std::uint8_t> bits(2);
    const auto kernels = compress_kernels<TypeParam>(kind);
    EXPECT_EQ(kernels.compress(values.data(), elements.data(), TypeParam{0}, bits.data(), 10),
              1 + 4 + 9 + 16 + 25 + 36 + 49 + 64);
    EXPECT_EQ(bits, (std::vector<std::uint8_t>{0b10110100, 0b01111111}));
    EXPECT_EQ(elements, values);
    // What a scale of 2 missed of them: -1, 0, -2, -2, -1, 2, -3, -4, -5, 6.
    kernels.compress(std::vector<TypeParam>(values.size(), TypeParam{1}).data(), elements.data(), TypeParam{2},
                     bits.data(), 10);
    EXPECT_EQ(elements, (std::vector<TypeParam>{0, 1, -1, -1, 0, 3, -2, -3, -4, 7}));
    EXPECT_EQ(bits, (std::vector<std::uint8_t>{0b11001100, 0b01111111}));
  }
}

}  // namespace
}  // namespace espalier::detail
