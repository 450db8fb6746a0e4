// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/self_launch.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "apps/exit_codes.hpp"
#include "espalier/base/check.hpp"
#include "espalier/base/read_file.hpp"

namespace espalier::command {
namespace {

constexpr const char* kTerminalVariable = "ESPALIER_TERMINAL";

// This program and its arguments, as it was started.
std::vector<std::string> own_command_line() {
  const std::string all = read_file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = all.find('\0', begin);
    words.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  words.front() = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

}  // namespace

void run_as_ranks(std::string_view command, std::optional<std::int64_t> num_ranks, const std::function<void()>& rank,
                  std::chrono::milliseconds stop_time) {
  const RankEnvironment found = discover_ranks(process_variables());
  const bool alone = found.launcher == Launcher::alone;
  ESPALIER_CHECK_CONFIG(num_ranks || !alone,
                        "layout: '=rest' needs a launcher that says how many ranks there are, such as "
                        "espalier run -n 4 -- espalier {} ...; or give every size",
                        command);
  if (!alone || num_ranks == 1) return rank();
  LaunchOptions options;
  options.command = own_command_line();
  options.num_ranks = *num_ranks;
  options.speaker = fmt::format("espalier {}", command);
  options.explained_codes = {kRequestIsWrong, kCommunicationFailed, kDefect, kDiverged, 128 + SIGINT, 128 + SIGTERM};
  options.stop_time = stop_time;
  if (isatty(STDOUT_FILENO)) options.variables[kTerminalVariable] = "1";
  if (const int code = launch_ranks(options); code != 0) throw CLI::RuntimeError(code);
}

std::optional<std::int64_t> num_ranks_of(const LayoutSpec& spec) {
  std::int64_t product = 1;
  for (const std::int64_t size : {spec.pipe, spec.data, spec.context, spec.tensor}) {
    if (size == kRest) return std::nullopt;
    ESPALIER_CHECK_CONFIG(!__builtin_mul_overflow(product, size, &product),
                          "layout: its sizes multiply to more than 2^63 ranks; choose smaller ones");
  }
  return product;
}

bool shows_on_terminal() {
  if (const char* const said = std::getenv(kTerminalVariable)) return std::string_view(said) == "1";
  // Open MPI's ranks write to a terminal that mpirun makes, whatever it writes to itself.
  return discover_ranks(process_variables()).launcher != Launcher::open_mpi && isatty(STDOUT_FILENO) != 0;
}

}  // namespace espalier::command
