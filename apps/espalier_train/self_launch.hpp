// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "espalier/plan/launch/launch.hpp"
#include "espalier/plan/layout/layout.hpp"

namespace espalier::command {

// Inside a launcher: runs `rank`. Outside: starts this program with the same arguments as `num_ranks` ranks on this
// host and ends with their exit code (CLI::RuntimeError); one rank runs right here. ConfigError for nullopt outside a
// launcher. `command` is the subcommand's name, for messages; after a signal the ranks have `stop_time` until SIGKILL.
void run_as_ranks(std::string_view command, std::optional<std::int64_t> num_ranks, const std::function<void()>& rank,
                  std::chrono::milliseconds stop_time = LaunchOptions().stop_time);

// What the sizes of a layout multiply to; nullopt where one of them is `rest`, which a launcher has to fill in.
// ConfigError beyond 2^63.
std::optional<std::int64_t> num_ranks_of(const LayoutSpec& spec);

// Whether what this rank prints ends on a terminal.
bool shows_on_terminal();

}  // namespace espalier::command
