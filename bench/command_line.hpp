// SPDX-License-Identifier: Apache-2.0
// What the programs of this folder share: a command line that CLI11 reads, and the command's exit codes.
#pragma once

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <functional>

#include "apps/exit_codes.hpp"
#include "espalier/base/error.hpp"
#include "espalier/plan/launch/environment.hpp"

namespace espalier::bench {

// Reads the arguments into `app`'s options and runs `body`. Returns the exit code; errors are one line each, what is
// wrong with the arguments is said by rank 0 alone.
inline int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  const auto read_and_run = [&] {
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& asked) {
      return app.exit(asked);
    } catch (const CLI::ParseError& error) {
      throw ConfigError(fmt::format("{}: {}; --help shows what it takes", app.get_name(), error.what()));
    }
    body();
    return 0;
  };
  return command::with_exit_codes(read_and_run, [] { return discover_ranks(process_variables()).rank.value == 0; });
}

}  // namespace espalier::bench
