// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "espalier/base/error.hpp"

namespace espalier::testing {

// The text of the ConfigError that `action` throws. Far cheaper to compile than ThrowsMessage with
// a lambda each.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(no ConfigError)";
}

}  // namespace espalier::testing
