// SPDX-License-Identifier: Apache-2.0
// Checking oracle records. To add a topic NAME (the "topic" of an oracle file):
//   1. copy its file to tests/data/oracles/NAME.json;
//   2. write check_NAME.cpp, which defines `Checkers NAME_checkers()`: one entry for each function
//   of the file;
//   3. add `oracle_topic(NAME PASSED p REFUSED r)` to CMakeLists.txt: it builds the source and adds
//   the ctest.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace espalier::oracle {

using Json = nlohmann::json;

// Upstream raises an error here, or should have done so.
bool wants_refusal(const Json& record);
// record["right"] where upstream goes wrong, otherwise record["out"].
Json expected_of(const Json& record);

struct Checker {
  // What Espalier says to record["in"], in the form of the expected output; may have further keys.
  // record["out"] is there only to read samples' inputs from. Throws ConfigError to refuse.
  std::function<Json(const Json& record)> answer;
  // What the answer is compared with.
  std::function<Json(const Json& record)> expected = expected_of;
  // For non-integers, relative to the largest one of the expected output; the second where in.dtype is float32.
  double tolerance = 1e-10;
  double float32_tolerance = 1e-5;
};

using Checkers = std::map<std::string, Checker>;

enum class Verdict { passed, refused, differed, unknown };

struct Outcome {
  Verdict verdict = Verdict::unknown;
  std::string text;  // what differs
};

// passed: the answer is the expected one. refused: a refusal was expected and came. differed:
// anything else.
Outcome check_record(const Json& record, const Checkers& checkers);

// Where `actual` departs from `expected`, e.g. "creation/3: expected [0,1], got [0,2]"; nullopt if
// it does not. Keys that only `actual` has are ignored.
std::optional<std::string> difference(const Json& expected, const Json& actual, double tolerance);

}  // namespace espalier::oracle
