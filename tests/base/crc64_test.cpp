// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/crc64.hpp"

#include <gtest/gtest.h>

#include <string>

namespace espalier {
namespace {

TEST(Crc64, HasTheCatalogueCheckValueOfCrc64Xz) { EXPECT_EQ(crc64(0, "123456789", 9), 0x995DC9BBDF1939FAU); }

TEST(Crc64, OfPiecesIsThatOfTheWhole) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i * 37 + 11);
  const std::uint64_t whole = crc64(0, text.data(), text.size());
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc64(crc64(0, text.data(), cut), text.data() + cut, text.size() - cut), whole) << cut;
  }
}

TEST(Crc64, OfNothingIsZero) { EXPECT_EQ(crc64(0, nullptr, 0), 0U); }

TEST(Crc64, ChangesWithEveryBit) {
  std::string text(41, 'x');
  const std::uint64_t whole = crc64(0, text.data(), text.size());
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(crc64(0, text.data(), text.size()), whole) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  }
}

}  // namespace
}  // namespace espalier
