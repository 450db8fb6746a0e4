// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace espalier {

// Where a fact of a run must be the same. On all ranks it must always.
enum class FactScope {
  run,    // after a resume too: model, optimizer, data, seeds
  ranks,  // a resume may change it: layout, schedule, number of steps
};

struct Fact {
  std::string name;   // "optimizer.lr"
  std::string value;  // "0.001"
  FactScope scope = FactScope::run;

  bool operator==(const Fact&) const = default;
};

namespace detail {
std::string shortest_text(double value);
}

// The value of a fact: a number as the shortest text that reads back as the same number, true or false.
template <class Number>
  requires std::is_arithmetic_v<Number>
std::string fact_text(Number value) {
  if constexpr (std::is_same_v<Number, bool>) return value ? "true" : "false";
  if constexpr (std::is_integral_v<Number>) return std::to_string(value);
  return detail::shortest_text(static_cast<double>(value));
}

// A fact on which two fingerprints differ. "nothing" stands for a fact that one of them lacks.
struct FactDifference {
  std::string name;
  std::string ours;
  std::string theirs;
};

// What a run is made of, as text: one value for each name, in the order of adding. Knows neither ranks nor layout, but
// for facts of FactScope::ranks. A plain value.
class Fingerprint {
 public:
  Fingerprint() = default;
  explicit Fingerprint(std::vector<Fact> facts);

  // ConfigError where there is another value of that name; the same again changes nothing.
  void add(Fact fact);

  std::span<const Fact> facts() const { return facts_; }
  const Fact* find(std::string_view name) const;  // null: there is none

  // The facts of FactScope::run that are not the same in both: ours in their order, then those that only `theirs` has.
  std::vector<FactDifference> differences(const Fingerprint& theirs) const;

 private:
  std::vector<Fact> facts_;
};

}  // namespace espalier
