// SPDX-License-Identifier: Apache-2.0
// `espalier run -n 4 -- ./program args`: any program as the ranks of one world.
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/espalier/commands.hpp"
#include "espalier/base/check.hpp"
#include "espalier/base/read_file.hpp"
#include "espalier/plan/launch/environment.hpp"
#include "espalier/plan/launch/hosts.hpp"
#include "espalier/plan/launch/launch.hpp"

namespace espalier::command {

namespace {

// Every rank of another launcher would start a whole world of its own.
void refuse_inside_a_launcher() {
  const RankEnvironment found = discover_ranks(process_variables());
  ESPALIER_CHECK_CONFIG(found.world_size.value == 1 || found.launcher == Launcher::slurm,
                        "run: this is already rank {} of {} under {} ({}={}); start the program "
                        "itself there, without espalier run",
                        found.rank.value, found.world_size.value, to_string(found.launcher), found.rank.variable,
                        found.rank.value);
}

void set_default(const char* name, const char* value) { setenv(name, value, 0); }

// This process becomes mpirun. Ranks may share cores, as with the other backends. Open MPI 4 and 5 take these settings
// as variables of different names, MPICH needs none.
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
  throw ConfigError(
      fmt::format("run: mpirun cannot be started: {}; install an MPI (scripts/setup installs Open MPI), or run "
                  "without --backend mpi",
                  std::strerror(errno)));
}

struct RunOptions {
  std::vector<std::string> command;
  std::optional<std::int64_t> num_ranks;
  std::string backend;
  std::string postmortem;
  double grace = 0.8;  // seconds
  std::string hostfile;
  std::string remote_shell = "ssh";
  std::string remote_espalier;
  std::string master_address;
  std::int64_t master_port = 29500;
  std::vector<std::string> variables;
};

// NAME=VALUE, or NAME for the value it has here.
std::pair<std::string, std::string> read_variable(const std::string& text) {
  const auto equals = text.find('=');
  const std::string name = text.substr(0, equals);
  ESPALIER_CHECK_CONFIG(!name.empty(), "run: --env {}; expected NAME or NAME=VALUE", text);
  if (equals != std::string::npos) return {name, text.substr(equals + 1)};
  const char* const value = std::getenv(name.c_str());
  ESPALIER_CHECK_CONFIG(value != nullptr, "run: --env {}, but {} is not set here; set it, or give --env {}=VALUE", name,
                        name, name);
  return {name, value};
}

// What every rank gets, wherever it is.
Variables variables_for_ranks(const RunOptions& options) {
  Variables variables;
  for (const std::string& each : options.variables) variables.insert(read_variable(each));
  if (!options.backend.empty()) variables["ESPALIER_BACKEND"] = options.backend;
  if (!options.postmortem.empty()) variables["ESPALIER_POSTMORTEM"] = std::filesystem::absolute(options.postmortem);
  return variables;
}

// Other hosts do not have this process's variables.
Variables variables_for_hosts(const RunOptions& options) {
  Variables variables;
  for (const auto& [name, value] : process_variables())
    if (name.starts_with("ESPALIER_") || name == "OMP_NUM_THREADS") variables[name] = value;
  return with_variables(std::move(variables), variables_for_ranks(options));
}

int run_on_hosts(const RunOptions& options) {
  ESPALIER_CHECK_CONFIG(options.backend != "mpi" && options.backend != "host", "run: --hostfile with --backend {}; {}",
                        options.backend,
                        options.backend == "mpi" ? "start the ranks with mpirun --hostfile instead"
                                                 : "that one needs all ranks on one host: leave it out or choose gloo");
  HostsLaunchOptions launch;
  launch.command = options.command;
  launch.hosts = parse_hostfile(read_file(options.hostfile), options.hostfile);
  if (options.num_ranks) launch.hosts = take_slots(std::move(launch.hosts), *options.num_ranks);
  launch.remote_shell = CLI::detail::split_up(options.remote_shell);
  ESPALIER_CHECK_CONFIG(!launch.remote_shell.empty(), "run: --remote-shell is empty; expected a command such as ssh");
  launch.remote_espalier = options.remote_espalier.empty() ? std::filesystem::read_symlink("/proc/self/exe").string()
                                                           : options.remote_espalier;
  launch.master_address = options.master_address.empty() ? launch.hosts.front().host : options.master_address;
  launch.master_port = options.master_port;
  launch.variables = variables_for_hosts(options);
  return launch_on_hosts(launch);
}

int run_here(const RunOptions& options) {
  ESPALIER_CHECK_CONFIG(options.num_ranks.has_value(), "run: how many ranks? give -n N, or --hostfile FILE");
  LaunchOptions launch;
  launch.command = options.command;
  launch.num_ranks = *options.num_ranks;
  if (options.backend == "mpi") execute_mpirun(launch);
  launch.variables = variables_for_ranks(options);
  launch.stop_time = std::chrono::milliseconds(std::llround(1e3 * options.grace));
  return launch_ranks(launch);
}

void end_with(int code) {
  if (code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("run", "Start a program as the ranks of one world, on this host or on several");
  sub->footer(
      "Output is passed on in whole lines; rank 0 reads standard input unless it is a terminal. A "
      "rank "
      "that fails ends the others. Exit code: 0, or that of the rank that failed first (128 + n "
      "for "
      "signal n).");
  const auto options = std::make_shared<RunOptions>();
  sub->add_option("-n,--ranks", options->num_ranks, "How many ranks; with --hostfile: default all its slots");
  sub->add_option("--backend", options->backend,
                  "What the ranks talk over, told to them as ESPALIER_BACKEND: host, gloo, hierarchical, or mpi, "
                  "which makes this command execute mpirun")
      ->check(CLI::IsMember({"host", "gloo", "hierarchical", "mpi"}));
  sub->add_option("--postmortem", options->postmortem,
                  "Where one rank writes what all were doing when the world fails (host), told to "
                  "them as ESPALIER_POSTMORTEM; see espalier postmortem");
  CLI::Option* const grace =
      sub->add_option("--grace", options->grace,
                      "Seconds that ranks have after a signal to this command, from SIGTERM to SIGKILL; for programs "
                      "that save then, as espalier train does")
          ->check(CLI::Range(0.0, 1e6))
          ->capture_default_str();
  sub->add_option("--env", options->variables,
                  "A variable for every rank, NAME=VALUE, or NAME as it is here; more than once")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  const auto hostfile =
      sub->add_option("--hostfile", options->hostfile, "Start the ranks on these hosts: lines of HOST slots=N");
  for (CLI::Option* const option :
       {sub->add_option("--remote-shell", options->remote_shell,
                        "What starts a command on a host: its words, then the host's name"),
        sub->add_option("--remote-espalier", options->remote_espalier,
                        "This command's path on the hosts (default: the same as here)"),
        sub->add_option("--master-addr", options->master_address,
                        "The first host's address, where the others reach it (default: its name)"),
        sub->add_option("--master-port", options->master_port, "A free port there")->check(CLI::Range(1, 65535))})
    option->needs(hostfile);
  grace->excludes(hostfile);
  sub->get_option("--remote-shell")->capture_default_str();
  sub->get_option("--master-port")->capture_default_str();
  sub->add_option("program", options->command, "The program and its arguments, after --")->required();
  sub->callback([options] {
    refuse_inside_a_launcher();
    end_with(options->hostfile.empty() ? run_here(*options) : run_on_hosts(*options));
  });

  CLI::App* agent = app.add_subcommand("agent", "What run --hostfile starts on each host")->group("");
  const auto share = std::make_shared<std::string>();
  agent->add_option("share", *share)->required();
  agent->callback([share] { end_with(serve_share(*share)); });
}

}  // namespace espalier::command
