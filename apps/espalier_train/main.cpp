// SPDX-License-Identifier: Apache-2.0
// `espalier-train`: the subcommands of `espalier` that need tensors. Outside a launcher it starts its own ranks, each of
// which is this program again. Exit codes: 2 the request is wrong, 3 communication failed, 4 a defect in Espalier.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <exception>
#include <string_view>

#include "apps/espalier_train/commands.hpp"
#include "espalier/base/error.hpp"
#include "espalier/plan/launch/environment.hpp"

namespace {

enum ExitCode { kConfigError = 2, kCommError = 3, kInternalError = 4 };

// All ranks find the same thing wrong with a request; one says so.
bool speaks_for_all() {
  try {
    return espalier::discover_ranks(espalier::process_variables()).rank.value == 0;
  } catch (const espalier::ConfigError&) {
    return true;  // who speaks cannot be known
  }
}

int complain(std::string_view text, ExitCode code) {
  fmt::print(stderr, "espalier: {}\n", text);
  return code;
}

int run(int argc, char** argv) {
  CLI::App app("Trains the reference GPT over a layout of ranks.", "espalier");
  app.require_subcommand(1);
  espalier::command::add_train(app);
  espalier::command::add_verify(app);
  espalier::command::add_verify_groups(app);
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
  try {
    return run(argc, argv);
  } catch (const espalier::ConfigError& error) {
    return speaks_for_all() ? complain(error.what(), kConfigError) : kConfigError;
  } catch (const espalier::CommError& error) {
    return complain(error.what(), kCommError);
  } catch (const std::exception& error) {
    return complain(error.what(), kInternalError);
  }
}
