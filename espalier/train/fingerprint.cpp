// SPDX-License-Identifier: Apache-2.0
#include "espalier/train/fingerprint.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "espalier/base/check.hpp"

namespace espalier {

std::string detail::shortest_text(double value) {
  char text[32];
  return {text, std::to_chars(std::begin(text), std::end(text), value).ptr};
}

Fingerprint::Fingerprint(std::vector<Fact> facts) {
  for (Fact& fact : facts) add(std::move(fact));
}

void Fingerprint::add(Fact fact) {
  const Fact* const there = find(fact.name);
  ESPALIER_CHECK_CONFIG(!fact.name.empty(), "fingerprint: the value '{}' has no name", fact.value);
  ESPALIER_CHECK_CONFIG(there == nullptr || *there == fact,
                        "fingerprint: {} is both '{}' and '{}'; give each fact a name of its own", fact.name,
                        there->value, fact.value);
  if (there == nullptr) facts_.push_back(std::move(fact));
}

const Fact* Fingerprint::find(std::string_view name) const {
  const auto found = std::ranges::find(facts_, name, &Fact::name);
  return found == facts_.end() ? nullptr : &*found;
}

std::vector<FactDifference> Fingerprint::differences(const Fingerprint& theirs) const {
  constexpr const char* kNothing = "nothing";
  std::vector<FactDifference> differences;
  for (const Fact& ours : facts_) {
    if (ours.scope != FactScope::run) continue;
    const Fact* const other = theirs.find(ours.name);
    if (other == nullptr || other->value != ours.value)
      differences.push_back({ours.name, ours.value, other != nullptr ? other->value : kNothing});
  }
  for (const Fact& other : theirs.facts_) {
    if (other.scope == FactScope::run && find(other.name) == nullptr)
      differences.push_back({other.name, kNothing, other.value});
  }
  return differences;
}

}  // namespace espalier
