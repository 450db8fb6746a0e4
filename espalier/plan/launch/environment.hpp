// SPDX-License-Identifier: Apache-2.0
// Which rank a process is, read from the variables that launchers set.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

using Variables = std::map<std::string, std::string, std::less<>>;

// The variables of this process.
Variables process_variables();

// `base` with these added or replaced.
Variables with_variables(Variables base, const Variables& added);

enum class Launcher { alone, espalier_run, torchrun, open_mpi, mpich, slurm };

// "alone", "espalier run", "torchrun", "Open MPI", "MPICH", "Slurm".
std::string_view to_string(Launcher launcher);

// A value and the variable it came from; no variable: it follows from the rest.
struct FoundNumber {
  std::int64_t value = 0;
  std::string variable = {};
};
struct FoundText {
  std::string value;
  std::string variable;
};

struct RankEnvironment {
  Launcher launcher = Launcher::alone;
  FoundNumber rank{0};
  FoundNumber world_size{1};
  FoundNumber local_rank{0};                         // among the ranks of this host
  std::optional<FoundNumber> local_world_size = {};  // Slurm says it for one host
  std::optional<FoundText> master_address = {};      // where the ranks meet; both or neither
  std::optional<FoundNumber> master_port = {};
  bool agent_serves_store = false;                   // torchrun's agent is the server, rank 0 a client
  std::optional<FoundNumber> store_descriptor = {};  // rank 0 of espalier run: listening socket
  std::optional<FoundText> job = {};                 // tells programs apart that meet at one address
};

// Finds the launcher and checks what it says. Of nested launchers the innermost counts. ConfigError
// names the variables and values that contradict each other, and the remedy.
RankEnvironment discover_ranks(const Variables& variables);

// How `espalier run` tells a rank who it is.
struct Assignment {
  std::int64_t rank;
  std::int64_t num_ranks;
  std::int64_t local_rank;
  std::int64_t local_size;  // ranks on this host
  std::string address;      // where the ranks meet
  std::int64_t port;
  std::int64_t store_descriptor = -1;  // of the socket that listens there; -1: rank 0 opens it
  std::string job;
  std::string host = {};  // what this host is to be called; empty: its own name
};
// `base` without what other launchers said, and with this assignment. OMP_NUM_THREADS becomes 1 unless it is set.
Variables variables_of_rank(Variables base, const Assignment& assignment);

// Every variable that discovery looks at and that is set, as "NAME=value", in a fixed order.
std::vector<std::string> rank_variables(const Variables& variables);

}  // namespace espalier
