// SPDX-License-Identifier: Apache-2.0
// Private: starting the ranks of one world on several hosts, and ending them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/launch/environment.hpp"
#include "espalier/plan/launch/hostfile.hpp"

namespace espalier {

struct HostsLaunchOptions {
  std::vector<std::string> command;              // found on every host under this name, from this folder
  std::vector<HostSlots> hosts;                  // as many ranks on each as it has slots, in this order
  std::vector<std::string> remote_shell{"ssh"};  // words before the host's name
  std::string remote_espalier;                   // this command's path on the hosts
  std::string master_address;                    // of the first host, where all others reach it
  std::int64_t master_port = 29500;              // free there
  Variables variables = {};                      // set in every rank
};

// Starts `REMOTE_SHELL HOST REMOTE_ESPALIER agent SHARE` for each host and blocks until all have
// ended; what an agent does is serve_share. Ends as launch_ranks does, within 3 seconds; the agents
// notice by the end of their standard input that this process has gone. No rank reads standard
// input.
int launch_on_hosts(const HostsLaunchOptions& options);

// The ranks of one host; `share` is what launch_on_hosts wrote. Its standard input is the lifeline.
int serve_share(std::string_view share);

}  // namespace espalier
