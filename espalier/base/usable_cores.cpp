// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/usable_cores.hpp"

#include <sched.h>

namespace espalier {

std::int64_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace espalier
