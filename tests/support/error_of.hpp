// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "espalier/base/error.hpp"

namespace espalier::testing_support {

// The text of the Error that `action` throws. Far cheaper to compile than ThrowsMessage with
// a lambda each.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace espalier::testing_support
