// SPDX-License-Identifier: Apache-2.0
// FNV-1a (64 bit) over everything that tells one stream from another, each part in a fixed width or
// closed by its length, so that no two inputs read alike; then SplitMix64's finalizer, which
// spreads every input bit over the result.
#include "espalier/plan/seed.hpp"

namespace espalier {
namespace {

class Fnv1a {
 public:
  void byte(std::uint8_t value) { hash_ = (hash_ ^ value) * 0x100000001b3u; }
  void word(std::uint64_t value) {  // little-endian on every machine
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<std::uint8_t>(value >> shift));
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t derive_seed(std::uint64_t seed, std::string_view purpose,
                          std::initializer_list<std::int64_t> coordinates) {
  Fnv1a hash;
  hash.word(seed);
  for (char c : purpose) hash.byte(static_cast<std::uint8_t>(c));
  hash.word(purpose.size());
  for (std::int64_t coordinate : coordinates) hash.word(static_cast<std::uint64_t>(coordinate));
  return splitmix64(hash.value());
}

}  // namespace espalier
