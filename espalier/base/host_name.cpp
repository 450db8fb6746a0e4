// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/host_name.hpp"

#include <unistd.h>

namespace espalier {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace espalier
