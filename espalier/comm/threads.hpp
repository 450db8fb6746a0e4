// SPDX-License-Identifier: Apache-2.0
// Private: ranks as threads over transports that exist already. run_ranks and tests use it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "espalier/comm/communicator.hpp"
#include "espalier/comm/world.hpp"

namespace espalier::detail {

// As run_ranks, with one rank for each transport. A single null transport makes a world of one. `host_of_rank`: on
// which host each rank is said to be; empty: all on one.
void run_threads(std::vector<std::shared_ptr<Transport>> transports, Backend backend,
                 const std::function<void(World&)>& body, const WorldOptions& options,
                 const std::vector<std::int64_t>& host_of_rank = {});

}  // namespace espalier::detail
