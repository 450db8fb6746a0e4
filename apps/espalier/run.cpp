// SPDX-License-Identifier: Apache-2.0
// `espalier run -n 4 -- ./program args`: any program as the ranks of one world on this host.
#include <CLI/App.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/espalier/commands.hpp"
#include "espalier/base/check.hpp"
#include "espalier/plan/launch/environment.hpp"
#include "espalier/plan/launch/launch.hpp"

namespace espalier::command {

namespace {

// Every rank of another launcher would start a whole world of its own.
void refuse_inside_a_launcher() {
  const RankEnvironment found = discover_ranks(process_variables());
  ESPALIER_CHECK_CONFIG(found.world_size.value == 1 || found.launcher == Launcher::slurm,
                        "run: this is already rank {} of {} under {} ({}={}); start the program "
                        "itself there, without espalier run",
                        found.rank.value, found.world_size.value, to_string(found.launcher),
                        found.rank.variable, found.rank.value);
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App* sub =
      app.add_subcommand("run", "Start a program as the ranks of one world on this host");
  sub->footer(
      "Output is passed on in whole lines; rank 0 reads standard input unless it is a terminal. A "
      "rank "
      "that fails ends the others. Exit code: 0, or that of the rank that failed first (128 + n "
      "for "
      "signal n).");
  const auto options = std::make_shared<LaunchOptions>();
  sub->add_option("-n,--ranks", options->num_ranks, "How many ranks")->required();
  sub->add_option("program", options->command, "The program and its arguments, after --")
      ->required();
  sub->callback([options] {
    refuse_inside_a_launcher();
    if (const int code = launch_ranks(*options); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace espalier::command
