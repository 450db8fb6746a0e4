// SPDX-License-Identifier: Apache-2.0
// Eight bytes a step: table[k][b] is what byte b contributes when k more bytes follow it in the
// step.
#include "espalier/base/crc64.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace espalier {
namespace {

static_assert(std::endian::native == std::endian::little);

using Tables = std::array<std::array<std::uint64_t, 256>, 8>;

constexpr Tables make_tables() {
  constexpr std::uint64_t kPolynomial = 0xC96C5795D7870F42;  // bits reversed
  Tables tables{};
  for (std::uint64_t byte = 0; byte < 256; ++byte) {
    std::uint64_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint64_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint64_t crc64(std::uint64_t crc, const void* data, std::size_t num_bytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; num_bytes >= 8; num_bytes -= 8, bytes += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes, 8);
    word ^= crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; num_bytes > 0; --num_bytes, ++bytes) crc = (crc >> 8) ^ kTables[0][(crc ^ *bytes) & 0xFF];
  return ~crc;
}

}  // namespace espalier
