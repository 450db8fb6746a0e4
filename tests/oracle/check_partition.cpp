// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "espalier/plan/partition/partition.hpp"
#include "tests/oracle/check.hpp"

namespace espalier::oracle {
namespace {

double largest(const std::vector<double>& weights, const std::vector<std::int64_t>& cuts) {
  const auto loads = part_loads(weights, cuts);
  return *std::max_element(loads.begin(), loads.end());
}

// The reference's cuts from the compatibility mode, the smallest possible largest load from ours.
Json balanced(const Json& record) {
  const std::vector<double> weights = record["in"]["weights"];
  const std::int64_t parts = record["in"]["parts"];
  const auto cuts = partition_deepspeed(weights, parts);
  const double ours = largest(weights, partition_balanced(weights, parts));
  return {{"parts", cuts}, {"max", largest(weights, cuts)}, {"optimal_max", ours}};
}

Json without_verdict(const Json& record) {
  Json expected = expected_of(record);
  expected.erase("is_optimal");
  return expected;
}

}  // namespace

Checkers partition_checkers() {
  return {
      {"partition_balanced", {.answer = balanced, .expected = without_verdict}},
      {"partition_uniform", {.answer = [](const Json& record) -> Json {
         return partition_uniform(record["in"]["items"], record["in"]["parts"]);
       }}},
      {"prefix_sum_inc", {.answer = [](const Json& record) -> Json {
         return prefix_sum(record["in"]["weights"].get<std::vector<double>>());
       }}},
  };
}

}  // namespace espalier::oracle
