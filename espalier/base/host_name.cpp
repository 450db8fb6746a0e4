// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/host_name.hpp"

#include <unistd.h>

#include <cstdlib>

namespace espalier {

std::string host_name() {
  if (const char* given = std::getenv("ESPALIER_HOST"); given != nullptr && *given != '\0') return given;
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace espalier
