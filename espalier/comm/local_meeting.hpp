// SPDX-License-Identifier: Apache-2.0
// Private: how the ranks of one job on one host find a port when their launcher names none.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace espalier::detail {

struct LocalMeeting {
  int port;             // on 127.0.0.1
  int descriptor = -1;  // rank 0: the socket that listens there
};

// Rank 0 binds a free port and tells it to the others through an abstract socket that carries the
// job's name. Blocks until all were told. CommError at the deadline; ConfigError when the name is
// taken.
LocalMeeting meet_locally(std::string_view job, std::int64_t rank, std::int64_t size,
                          std::chrono::milliseconds timeout);

}  // namespace espalier::detail
