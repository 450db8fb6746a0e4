// SPDX-License-Identifier: Apache-2.0
// Private: a transport over any c10d::Backend, one for each group.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "espalier/comm/backends/c10d/session.hpp"
#include "espalier/comm/communicator.hpp"
#include "espalier/comm/rendezvous.hpp"

namespace espalier::detail {

// Where the backends of one rank's groups come from.
class C10dConnector {
 public:
  virtual ~C10dConnector() = default;
  // The connections of a group of these world ranks, of which this one is number `me`. They may meet at `store`, which
  // belongs to the group. Blocks; throws whatever the backend throws, or ConfigError where there is no way.
  virtual std::shared_ptr<C10dLink> connect(c10::intrusive_ptr<c10d::Store> store, const RankSet& members,
                                            std::int64_t me, std::string_view name) = 0;
  // Over what, for messages: "127.0.0.1".
  virtual std::string over() const = 0;
};

// For this process or thread as `rank` of `size`; nothing is connected yet, so it does not block. `timeout` is that of
// waits without a deadline of their own.
std::shared_ptr<Transport> make_c10d_transport(std::shared_ptr<C10dStore> store, std::int64_t rank, std::int64_t size,
                                               std::chrono::milliseconds timeout,
                                               std::shared_ptr<C10dConnector> connector);

}  // namespace espalier::detail
