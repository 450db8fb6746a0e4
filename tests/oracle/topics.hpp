// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "tests/oracle/check.hpp"

namespace espalier::oracle {

struct Topic {
  std::string_view name;
  Checkers (*checkers)();
};

// Every topic that was built in; the table is written by CMake from the oracle_topic() lines.
std::vector<Topic> topics();

}  // namespace espalier::oracle
