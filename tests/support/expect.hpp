// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace espalier::testing_support {

// For what ranks find wrong: GoogleTest's own checks are for the main thread, and a rank that throws ends the others.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace espalier::testing_support
