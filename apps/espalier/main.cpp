// SPDX-License-Identifier: Apache-2.0
// `espalier`: everything that can be known without tensors is answered here; what needs them is
// handed on to espalier-train. Exit codes: 2 the request is wrong, 3 communication failed, 4 a
// defect in Espalier.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "apps/espalier/commands.hpp"
#include "espalier/base/error.hpp"

namespace {

namespace command = espalier::command;

enum ExitCode { kConfigError = 2, kCommError = 3, kInternalError = 4 };

void add_commands(CLI::App& app) {
  command::add_doctor(app);
  command::add_explain(app);
  command::add_layout(app);
  command::add_partition(app);
  command::add_run(app);
  command::add_schedule(app);
  command::add_train(app);
}

int complain(std::string_view text, ExitCode code) {
  fmt::print(stderr, "espalier: {}\n", text);
  return code;
}

// The subcommand that was being read, or the program itself.
const CLI::App& chosen(const CLI::App& app) {
  const auto subcommands = app.get_subcommands();
  return subcommands.empty() ? app : *subcommands.front();
}

// One line for a command line that could not be understood.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& at = chosen(app);
  const bool top = &at == &app;
  const std::string where = top ? "" : at.get_name() + ": ";
  const std::string help = (top ? "espalier" : "espalier " + at.get_name()) + " --help";
  const auto extras = app.remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || extras.empty())
    return fmt::format("{}{}; {} shows what it takes", where, error.what(), help);
  const std::string& first = extras.front();
  if (first.starts_with("-"))
    return fmt::format("{}unknown option {}; {} lists the options", where, first, help);
  if (!top)
    return fmt::format("{}unexpected argument '{}'; {} shows what it takes", where, first, help);
  std::string names;
  for (const CLI::App* subcommand : app.get_subcommands(nullptr))
    names += (names.empty() ? "" : ", ") + subcommand->get_name();
  return fmt::format("unknown subcommand '{}'; there are {}", first, names);
}

int run(int argc, char** argv) {
  CLI::App app("Plans, draws and trains parallel layouts: data, tensor, pipe, expert, context.",
               "espalier");
  app.set_version_flag("--version", "espalier " ESPALIER_VERSION);
  app.require_subcommand(0, 1);
  add_commands(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::RuntimeError& done) {
    return done.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return complain(explain(app, error), kConfigError);
  }
  if (app.get_subcommands().empty())
    return complain("no subcommand; espalier --help lists them", kConfigError);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const espalier::ConfigError& error) {
    return complain(error.what(), kConfigError);
  } catch (const espalier::CommError& error) {
    return complain(error.what(), kCommError);
  } catch (const std::exception& error) {
    return complain(error.what(), kInternalError);
  }
}
