// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "espalier/comm/world.hpp"

namespace espalier {

// Runs `body` on `num_ranks` threads of this process, each with its own World over the chosen backend (default host):
// the same code paths as processes. When a body throws, the other ranks' waits end with a CommError; the first error
// is rethrown here, its text preceded by its rank. Blocks until all have ended. at::set_num_threads(1) in each rank.
// A rank's World is closed when its body returns: groups that were kept throw ConfigError afterwards.
void run_ranks(std::int64_t num_ranks, const std::function<void(World&)>& body, const WorldOptions& options = {});

}  // namespace espalier
