// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace espalier::testing_support {

// The records of one function in tests/data/oracles/FILE.
inline std::vector<nlohmann::json> oracle_records(const std::string& file, const std::string& function) {
  std::ifstream stream(ESPALIER_TEST_DATA "/oracles/" + file);
  const nlohmann::json all = nlohmann::json::parse(stream);
  std::vector<nlohmann::json> found;
  for (const nlohmann::json& record : all["records"]) {
    if (record["function"] == function) found.push_back(record);
  }
  return found;
}

}  // namespace espalier::testing_support
