// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace espalier {

// A 64-bit seed from a user's seed, the purpose ("init", "dropout", "data") and any coordinates
// (layer, micro-batch ...). The same everywhere and in every layout; different inputs give
// unrelated seeds. (SplitMix64 over FNV-1a.)
std::uint64_t derive_seed(std::uint64_t seed, std::string_view purpose,
                          std::initializer_list<std::int64_t> coordinates = {});

}  // namespace espalier
