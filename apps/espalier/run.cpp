// SPDX-License-Identifier: Apache-2.0
// `espalier run -n 4 -- ./program args`: any program as the ranks of one world on this host.
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
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

void set_default(const char* name, const char* value) { setenv(name, value, 0); }

// This process becomes mpirun. Ranks may share cores, as with the other backends. Open MPI 4 and 5 take these settings as
// variables of different names, MPICH needs none.
[[noreturn]] void execute_mpirun(const LaunchOptions& options) {
  ESPALIER_CHECK_CONFIG(options.num_ranks >= 1, "run: -n {}; expected at least one rank", options.num_ranks);
  setenv("ESPALIER_BACKEND", "mpi", 1);
  setenv("ESPALIER_TERMINAL", isatty(STDOUT_FILENO) != 0 ? "1" : "0", 1);  // which ranks cannot see
  set_default("OMP_NUM_THREADS", "1");
  set_default("OMPI_MCA_rmaps_base_oversubscribe", "1");
  set_default("OMPI_MCA_hwloc_base_binding_policy", "none");
  set_default("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
  set_default("PRTE_MCA_hwloc_default_binding_policy", "none");
  set_default("OMPI_MCA_btl_vader_single_copy_mechanism", "none");  // needs rights that containers lack
  if (geteuid() == 0) {
    set_default("OMPI_ALLOW_RUN_AS_ROOT", "1");
    set_default("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  std::vector<std::string> words{"mpirun", "-n", std::to_string(options.num_ranks)};
  words.insert(words.end(), options.command.begin(), options.command.end());
  const std::vector<char*> arguments = argument_vector(words);
  execvp(arguments.front(), arguments.data());
  throw ConfigError(fmt::format("run: mpirun cannot be started: {}; install an MPI (scripts/setup installs Open MPI), or run "
                                "without --backend mpi",
                                std::strerror(errno)));
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
  const auto backend = std::make_shared<std::string>();
  sub->add_option("--backend", *backend,
                  "What the ranks talk over, told to them as ESPALIER_BACKEND: host, gloo, or mpi, "
                  "which makes this command execute mpirun")
      ->check(CLI::IsMember({"host", "gloo", "mpi"}));
  const auto postmortem = std::make_shared<std::string>();
  sub->add_option("--postmortem", *postmortem,
                  "Where one rank writes what all were doing when the world fails (host), told to "
                  "them as ESPALIER_POSTMORTEM; see espalier postmortem");
  sub->add_option("program", options->command, "The program and its arguments, after --")
      ->required();
  sub->callback([options, backend, postmortem] {
    refuse_inside_a_launcher();
    if (*backend == "mpi") execute_mpirun(*options);
    if (!backend->empty()) options->variables["ESPALIER_BACKEND"] = *backend;
    if (!postmortem->empty())
      options->variables["ESPALIER_POSTMORTEM"] = std::filesystem::absolute(*postmortem);
    if (const int code = launch_ranks(*options); code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace espalier::command
