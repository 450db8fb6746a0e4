// SPDX-License-Identifier: Apache-2.0
// Private: the backend for hosts with several ranks each: shared memory inside a host, Gloo between hosts. Groups that
// stay inside a host are groups of the host backend; what others do, spanning_communicator says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "espalier/comm/backends/c10d/gloo.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"
#include "espalier/comm/communicator.hpp"
#include "espalier/comm/rendezvous.hpp"

namespace espalier::detail {

// For this process as `rank`; `host_of_rank` numbers the hosts of all ranks. Blocks until the ranks of this host have
// joined; errors as make_host_transport. `host.host` is this host's name, which a post-mortem file of this host ends
// in; the time-out is that of `host`.
std::shared_ptr<Transport> make_hierarchical_transport(const std::shared_ptr<C10dStore>& store, std::int64_t rank,
                                                       std::span<const std::int64_t> host_of_rank, HostOptions host,
                                                       GlooOptions gloo = {});

// For all ranks of a world as threads of this process: entry r belongs to the thread of rank r, as if it were on host
// host_of_rank[r], called "host <number>".
std::vector<std::shared_ptr<Transport>> make_hierarchical_transports_for_threads(
    std::span<const std::int64_t> host_of_rank, const HostOptions& host = {});

}  // namespace espalier::detail
