// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/check.hpp"

#include <algorithm>
#include <cmath>

#include "espalier/base/error.hpp"

namespace espalier::oracle {
namespace {

std::string shortened(const Json& value) {
  const std::string text = value.dump();
  return text.size() <= 160 ? text : text.substr(0, 157) + "...";
}

double largest_float(const Json& value) {
  if (value.is_number_float()) return std::abs(value.get<double>());
  double largest = 0;
  if (value.is_structured()) {
    for (const Json& item : value) largest = std::max(largest, largest_float(item));
  }
  return largest;
}

std::optional<std::string> compare(const Json& expected, const Json& actual, double slack, const std::string& where) {
  const std::string differs = where + ": expected " + shortened(expected) + ", got " + shortened(actual);
  if (expected.is_object()) {
    if (!actual.is_object()) return differs;
    for (const auto& [key, value] : expected.items()) {
      const std::string path = where.empty() ? key : where + "/" + key;
      if (!actual.contains(key)) return path + ": expected " + shortened(value) + ", got nothing";
      if (auto found = compare(value, actual[key], slack, path)) return found;
    }
    return std::nullopt;
  }
  if (expected.is_array()) {
    if (!actual.is_array() || actual.size() != expected.size()) return differs;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (auto found = compare(expected[i], actual[i], slack, where + "/" + std::to_string(i))) {
        return found;
      }
    }
    return std::nullopt;
  }
  if (expected.is_number() && actual.is_number() && (expected.is_number_float() || actual.is_number_float())) {
    const double distance = std::abs(expected.get<double>() - actual.get<double>());
    return distance <= slack ? std::nullopt : std::optional(differs);  // a NaN is never close
  }
  return expected == actual ? std::nullopt : std::optional(differs);
}

}  // namespace

bool wants_refusal(const Json& record) {
  return record.value("error", false) || (record.contains("upstream_bug") && record.at("right") == "refuse");
}

Json expected_of(const Json& record) { return record.at(record.contains("upstream_bug") ? "right" : "out"); }

std::optional<std::string> difference(const Json& expected, const Json& actual, double tolerance) {
  return compare(expected, actual, tolerance * largest_float(expected), "");
}

Outcome check_record(const Json& record, const Checkers& checkers) {
  const auto found = checkers.find(record.at("function").get<std::string>());
  if (found == checkers.end()) return {Verdict::unknown, "no checker for this function"};
  const Checker& checker = found->second;
  Json answer;
  try {
    answer = checker.answer(record);
  } catch (const ConfigError& error) {
    if (wants_refusal(record)) return {Verdict::refused, error.what()};
    return {Verdict::differed, std::string("refused: ") + error.what()};
  } catch (const std::exception& error) {
    return {Verdict::differed, std::string("threw: ") + error.what()};
  }
  if (wants_refusal(record)) return {Verdict::differed, "expected a refusal, got " + shortened(answer)};
  const bool float32 = record.at("in").value("dtype", "") == "float32";
  const double tolerance = float32 ? checker.float32_tolerance : checker.tolerance;
  if (auto text = difference(checker.expected(record), answer, tolerance)) {
    return {Verdict::differed, *text};
  }
  return {Verdict::passed, ""};
}

}  // namespace espalier::oracle
