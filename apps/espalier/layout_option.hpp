// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "espalier/plan/layout/layout.hpp"

namespace espalier::command {

// The layout that `text` asks for, of `world_size` ranks or else of as many as its sizes multiply to.
Layout make_layout(const std::string& text, std::optional<std::int64_t> world_size);

// Where a size comes from that was not given: " (rest)", " (as tensor)", " (left)"; else "".
std::string origin_note(const Layout& layout, std::string_view axis);

// ConfigError, which `command` begins, unless 0 <= rank < world_size.
void check_rank(std::string_view command, std::int64_t rank, std::int64_t world_size);

}  // namespace espalier::command
