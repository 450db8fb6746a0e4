// SPDX-License-Identifier: Apache-2.0
// Private: a group with members on several hosts.
#pragma once

#include <memory>
#include <string>

#include "espalier/comm/backends/hierarchical/placement.hpp"
#include "espalier/comm/backends/hierarchical/spanning_operation.hpp"
#include "espalier/comm/communicator.hpp"

namespace espalier::detail::hierarchical {

// What such a group talks over.
struct Links {
  std::shared_ptr<Communicator> whole;  // between hosts: all members
  std::shared_ptr<Communicator>
      between;  // between hosts: Placement::between(); null where this rank has no part in it, and
                // where each member is alone on its host
  std::shared_ptr<Communicator> inside;  // this host: its members; null where this rank is alone
  std::shared_ptr<Communicator> calls;   // the same members; for comparing calls alone
};

// `steps` runs this group's operations.
std::shared_ptr<Communicator> make_spanning_communicator(std::shared_ptr<Steps> steps, Placement placement,
                                                         const RankSet& members, std::string name, Links links);

}  // namespace espalier::detail::hierarchical
