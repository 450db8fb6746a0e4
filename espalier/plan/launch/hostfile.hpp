// SPDX-License-Identifier: Apache-2.0
// Private: DeepSpeed's hostfile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

struct HostSlots {
  std::string host;
  std::int64_t slots = 0;  // ranks it takes
};

// Lines "HOST slots=N"; empty ones and what follows a # are passed over. `name` is the file's, for
// the error: ConfigError with the number of the first line that is wrong, or where there is no host
// at all.
std::vector<HostSlots> parse_hostfile(std::string_view text, std::string_view name);

// The first `num_ranks` slots, in order. ConfigError if there are fewer.
std::vector<HostSlots> take_slots(std::vector<HostSlots> hosts, std::int64_t num_ranks);

}  // namespace espalier
