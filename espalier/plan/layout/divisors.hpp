// SPDX-License-Identifier: Apache-2.0
// Private to the library's sources: the divisibility checks of layouts and group plans.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

// "1, 2, 4, 8": the divisors of n >= 1, ascending.
std::string divisors(std::int64_t n);

// ConfigError unless part >= 1 divides whole >= 1:
// "model_data: model 4 does not divide the world of 6; legal model values: 1, 2, 3, 6".
void check_divides(std::string_view where, std::string_view part_name, std::int64_t part, std::string_view whole_name,
                   std::int64_t whole);

// ConfigError unless value >= 1: "model_data: the world is 0; expected at least 1".
void check_positive(std::string_view where, std::string_view name, std::int64_t value);

}  // namespace espalier
