// SPDX-License-Identifier: Apache-2.0
// `espalier`: everything that can be known without tensors is answered here; what needs them is
// handed on to espalier-train.
#include <fmt/format.h>

#include <string>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "apps/espalier/commands.hpp"
#include "apps/exit_codes.hpp"
#include "espalier/base/error.hpp"

namespace {

namespace command = espalier::command;

void add_commands(CLI::App& app) {
  command::add_doctor(app);
  command::add_explain(app);
  command::add_layout(app);
  command::add_partition(app);
  command::add_postmortem(app);
  command::add_run(app);
  command::add_schedule(app);
  command::add_train(app);
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
  if (first.starts_with("-")) return fmt::format("{}unknown option {}; {} lists the options", where, first, help);
  if (!top) return fmt::format("{}unexpected argument '{}'; {} shows what it takes", where, first, help);
  std::string names;
  for (const CLI::App* subcommand : app.get_subcommands(nullptr))
    if (!subcommand->get_group().empty())  // hidden otherwise
      names += (names.empty() ? "" : ", ") + subcommand->get_name();
  return fmt::format("unknown subcommand '{}'; there are {}", first, names);
}

int run(int argc, char** argv) {
  CLI::App app("Plans, draws and trains parallel layouts: data, tensor, pipe, expert, context.", "espalier");
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
    throw espalier::ConfigError(explain(app, error));
  }
  if (app.get_subcommands().empty()) throw espalier::ConfigError("no subcommand; espalier --help lists them");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return command::with_exit_codes([&] { return run(argc, argv); });
}
