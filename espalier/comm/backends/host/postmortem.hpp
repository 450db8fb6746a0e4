// SPDX-License-Identifier: Apache-2.0
// Private: the file that is left when a world over shared memory failed; `espalier postmortem` reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "espalier/comm/backends/host/segment.hpp"

namespace espalier::detail::host {

// Writes what every rank has called lately, whom it waits for and in which state it is. Returns "" or why it could not.
std::string write_postmortem(const Segment& segment, const RankNames& names, std::int64_t writer,
                             const std::string& path, std::string_view reason);

}  // namespace espalier::detail::host
