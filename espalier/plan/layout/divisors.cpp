// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/layout/divisors.hpp"

#include <vector>

#include "espalier/base/check.hpp"

namespace espalier {

std::string divisors(std::int64_t n) {
  std::vector<std::int64_t> low;
  std::vector<std::int64_t> high;
  for (std::int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d != n / d) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return fmt::format("{}", fmt::join(low, ", "));
}

void check_divides(std::string_view where, std::string_view part_name, std::int64_t part, std::string_view whole_name,
                   std::int64_t whole) {
  check_positive(where, whole_name, whole);
  ESPALIER_CHECK_CONFIG(part >= 1 && whole % part == 0, "{}: {} {} does not divide {} of {}; legal {} values: {}",
                        where, part_name, part, whole_name, whole, part_name, divisors(whole));
}

void check_positive(std::string_view where, std::string_view name, std::int64_t value) {
  ESPALIER_CHECK_CONFIG(value >= 1, "{}: {} is {}; expected at least 1", where, name, value);
}

}  // namespace espalier
