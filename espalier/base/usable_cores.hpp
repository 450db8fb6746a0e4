// SPDX-License-Identifier: Apache-2.0
// Private.
#pragma once

#include <cstdint>

namespace espalier {

// Processors that this process may run on; 1 where the system does not tell.
std::int64_t usable_cores();

}  // namespace espalier
