// SPDX-License-Identifier: Apache-2.0
// Private: the backend over TCP, through the Gloo inside LibTorch. For ranks on several hosts, and
// to compare with.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/comm/communicator.hpp"
#include "espalier/comm/rendezvous.hpp"

namespace c10d {
class Backend;
}

namespace espalier::detail {

class C10dLink;

struct GlooOptions {
  std::chrono::milliseconds timeout{300'000};  // of connecting a group, and of waits without a deadline of their own
  std::string address = "127.0.0.1";           // of this host, where the others can reach it
};

// For this process or thread as `rank` of `size`; nothing is connected yet, so it does not block.
std::shared_ptr<Transport> make_gloo_transport(std::shared_ptr<C10dStore> store, std::int64_t rank, std::int64_t size,
                                               const GlooOptions& options = {});

// For all ranks of a world as threads of this process: entry r belongs to the thread of rank r.
std::vector<std::shared_ptr<Transport>> make_gloo_transports_for_threads(std::int64_t size,
                                                                         const GlooOptions& options = {});

// A backend over Gloo of `size` ranks that meet at `store`. Blocks until they are connected; throws what Gloo throws.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t rank,
                                                    std::int64_t size, const GlooOptions& options = {});

// A program's own backend, if it is Gloo; null otherwise.
std::shared_ptr<C10dLink> link_to_gloo(const c10::intrusive_ptr<c10d::Backend>& backend);
// Another one of these of its ranks, over the same devices; null if it is not Gloo. Blocks; throws what Gloo throws.
std::shared_ptr<C10dLink> gloo_like(const c10::intrusive_ptr<c10d::Backend>& backend,
                                    const c10::intrusive_ptr<c10d::Store>& store, const RankSet& members,
                                    std::int64_t me, std::string_view name, std::chrono::milliseconds timeout);

}  // namespace espalier::detail
