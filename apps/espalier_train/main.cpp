// SPDX-License-Identifier: Apache-2.0
// `espalier-train`: the subcommands of `espalier` that need tensors. Outside a launcher it starts its own ranks, each
// of which is this program again.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "apps/espalier_train/commands.hpp"
#include "apps/exit_codes.hpp"
#include "espalier/base/error.hpp"
#include "espalier/plan/launch/environment.hpp"

namespace {

// All ranks find the same thing wrong with a request; one says so.
bool speaks_for_all() {
  try {
    return espalier::discover_ranks(espalier::process_variables()).rank.value == 0;
  } catch (const espalier::ConfigError&) {
    return true;  // who speaks cannot be known
  }
}

int run(int argc, char** argv) {
  CLI::App app("Trains the reference GPT over a layout of ranks.", "espalier");
  app.require_subcommand(1);
  espalier::command::add_train(app);
  espalier::command::add_verify(app);
  espalier::command::add_verify_groups(app);
  espalier::command::add_bench(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::RuntimeError& done) {
    return done.get_exit_code();
  } catch (const CLI::ParseError& error) {
    throw espalier::ConfigError(fmt::format("{}; --help shows what it takes", error.what()));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return espalier::command::with_exit_codes([&] { return run(argc, argv); }, speaks_for_all);
}
