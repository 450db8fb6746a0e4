// SPDX-License-Identifier: Apache-2.0
// Numbers of the oracle files as tensors.
#pragma once

#include <ATen/Functions.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace espalier::testing_support {

// JSON has no such numbers, so the files say "nan", "inf" and "-inf".
inline double oracle_number(const nlohmann::json& value) {
  return value.is_number() ? value.get<double>() : std::strtod(value.get<std::string>().c_str(), nullptr);
}

inline at::Tensor oracle_tensor(const nlohmann::json& list, at::ScalarType dtype = at::kDouble) {
  std::vector<double> numbers;
  for (const nlohmann::json& value : list) numbers.push_back(oracle_number(value));
  return at::tensor(numbers, at::kDouble).to(dtype);
}

}  // namespace espalier::testing_support
