// SPDX-License-Identifier: Apache-2.0
// Private: the shared-memory backend, for ranks of one host that are processes or threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "espalier/base/log.hpp"
#include "espalier/comm/call.hpp"
#include "espalier/comm/communicator.hpp"
#include "espalier/comm/store.hpp"
#include "espalier/comm/world.hpp"

namespace espalier::detail {

struct HostOptions {
  std::chrono::milliseconds timeout{300'000};               // of joining, and of waits without a deadline of their own
  std::int64_t arena_bytes = std::int64_t{64} << 20;        // of each rank; memory is taken only as it is used
  std::int64_t buffer_bytes = std::int64_t{16} << 30;       // of each rank, as rank 0 says; the same of them
  std::int64_t copies_limit_bytes = std::int64_t{4} << 30;  // of each rank: sent and early tensors outside the arenas
  LogSink log = stderr_sink();                              // told what was lost when a world was closed
  std::string postmortem{};                                 // file to write when the world fails; empty: none
  std::vector<std::int64_t> world_ranks{};                  // by rank: what messages call it; empty: the same
  std::string host{};                                       // named in messages with each rank; empty: not
};

HostOptions host_options_of(const WorldOptions& options);

// For this process as `rank` of `size`. Blocks until all ranks have joined; CommError naming the missing ones.
// ConfigError when the ranks cannot share memory, or a rank is started twice.
std::shared_ptr<Transport> make_host_transport(Store& store, std::int64_t rank, std::int64_t size,
                                               const HostOptions& options = {});

// For all ranks of a world as threads of this process: entry r belongs to the thread of rank r.
std::vector<std::shared_ptr<Transport>> make_host_transports_for_threads(std::int64_t size,
                                                                         const HostOptions& options = {});

// How many messages this rank keeps that came before the operations they are for. For tests.
std::int64_t num_unexpected_messages(const Transport& transport);

// ---- for a transport on top of this one; all are of it ----

// Makes all members compare what they have called, as they compare the calls made here; it waits for nobody.
void compare_calls(Communicator& communicator, const Call& call);
// "waiting for rank 1 (pid 7): its last call is ...".
std::string describe_wait(const Operation& operation);

}  // namespace espalier::detail
