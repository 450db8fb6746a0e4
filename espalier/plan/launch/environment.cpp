// SPDX-License-Identifier: Apache-2.0
// Each launcher is one row of kDialects: the names it gives to the same four numbers. Slurm is the
// outermost layer: its variables also reach processes that another launcher started inside a step,
// so it counts only where no other does. All others must agree where more than one is present
// (scripts that copy OMPI_COMM_WORLD_RANK to RANK are fine).
#include "espalier/plan/launch/environment.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "espalier/base/check.hpp"

namespace espalier {

namespace {

constexpr std::int64_t kMaxRanks = std::numeric_limits<std::int32_t>::max();

struct Dialect {
  Launcher launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;  // nullptr: the launcher does not say
};

constexpr std::array<Dialect, 5> kDialects{{
    {Launcher::espalier_run, "ESPALIER_RANK", "ESPALIER_WORLD_SIZE", "ESPALIER_LOCAL_RANK",
     "ESPALIER_LOCAL_WORLD_SIZE"},
    {Launcher::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {Launcher::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::mpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {Launcher::slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
}};

// Also looked at; the rest of what rank_variables() shows.
constexpr std::array<const char*, 17> kOtherVariables{"ESPALIER_MASTER_ADDR",
                                                      "ESPALIER_MASTER_PORT",
                                                      "ESPALIER_STORE_FD",
                                                      "ESPALIER_JOB",
                                                      "ESPALIER_HOST",
                                                      "ESPALIER_BACKEND",
                                                      "MASTER_ADDR",
                                                      "MASTER_PORT",
                                                      "TORCHELASTIC_USE_AGENT_STORE",
                                                      "TORCHELASTIC_RUN_ID",
                                                      "TORCHELASTIC_RESTART_COUNT",
                                                      "PMIX_NAMESPACE",
                                                      "PMIX_RANK",
                                                      "SLURM_JOB_ID",
                                                      "SLURM_STEP_ID",
                                                      "SLURM_STEP_NUM_NODES",
                                                      "SLURM_NTASKS"};

const std::string* find(const Variables& variables, std::string_view name) {
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : &found->second;
}

std::string shown(const Variables& variables, std::string_view name) {
  const std::string* value = find(variables, name);
  return value == nullptr ? fmt::format("{} unset", name) : fmt::format("{}={}", name, *value);
}

std::int64_t number(std::string_view name, std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  ESPALIER_CHECK_CONFIG(error == std::errc() && end == text.data() + text.size() && value >= least && value <= most,
                        "environment: {}={} is not a whole number from {} to {}; correct it, or unset the launcher's "
                        "variables to run alone",
                        name, text, least, most);
  return value;
}

std::optional<FoundNumber> find_number(const Variables& variables, const char* name, std::int64_t least,
                                       std::int64_t most) {
  const std::string* text = name == nullptr ? nullptr : find(variables, name);
  if (text == nullptr) return std::nullopt;
  return FoundNumber{number(name, *text, least, most), name};
}

std::optional<FoundText> find_text(const Variables& variables, const char* name) {
  const std::string* text = find(variables, name);
  if (text == nullptr || text->empty()) return std::nullopt;
  return FoundText{*text, name};
}

// What one launcher says, complete or not.
struct Claim {
  const Dialect* dialect;
  FoundNumber rank;
  FoundNumber world_size;
  std::optional<FoundNumber> local_rank;
  std::optional<FoundNumber> local_world_size;

  std::string to_string() const {
    return fmt::format("{} says rank {} of {} ({}={}, {}={})", espalier::to_string(dialect->launcher), rank.value,
                       world_size.value, rank.variable, rank.value, world_size.variable, world_size.value);
  }
  bool agrees(const Claim& other) const {
    return rank.value == other.rank.value && world_size.value == other.world_size.value;
  }
};

// A job script that was not started by srun sees the numbers of its job: they do not make it a
// rank.
bool is_slurm_step(const Variables& variables) {
  return find(variables, "SLURM_JOB_ID") == nullptr || find(variables, "SLURM_STEP_ID") != nullptr ||
         find(variables, "SLURM_STEP_NUM_TASKS") != nullptr;
}

const char* world_size_variable(const Variables& variables, const Dialect& dialect) {
  if (dialect.launcher == Launcher::slurm && find(variables, dialect.world_size) == nullptr) return "SLURM_NTASKS";
  return dialect.world_size;
}

void check_range(const FoundNumber& rank, const FoundNumber& size) {
  ESPALIER_CHECK_CONFIG(rank.value < size.value,
                        "environment: {}={} but {}={}; ranks go from 0 to {}; correct one of the two", rank.variable,
                        rank.value, size.variable, size.value, size.value - 1);
}

void check_local(const Claim& claim) {
  if (claim.local_rank) check_range(*claim.local_rank, claim.world_size);
  if (!claim.local_world_size) return;
  ESPALIER_CHECK_CONFIG(claim.local_world_size->value <= claim.world_size.value,
                        "environment: {}={} but {}={}; a host cannot have more ranks than there "
                        "are; correct one of the two",
                        claim.local_world_size->variable, claim.local_world_size->value, claim.world_size.variable,
                        claim.world_size.value);
  if (claim.local_rank) check_range(*claim.local_rank, *claim.local_world_size);
}

// nullopt: this launcher did not start the process.
std::optional<Claim> read_claim(const Variables& variables, const Dialect& dialect) {
  const bool slurm = dialect.launcher == Launcher::slurm;
  if (slurm && !is_slurm_step(variables)) return std::nullopt;
  const char* size_name = world_size_variable(variables, dialect);
  const auto rank = find_number(variables, dialect.rank, 0, kMaxRanks - 1);
  if (slurm && !rank) return std::nullopt;  // salloc sets SLURM_NTASKS alone
  const auto size = find_number(variables, size_name, 1, kMaxRanks);
  if (!rank && !size) {
    for (const char* local : {dialect.local_rank, dialect.local_world_size})
      ESPALIER_CHECK_CONFIG(local == nullptr || find(variables, local) == nullptr,
                            "environment: {} but {} and {} are unset; set them too, or unset it to run alone",
                            shown(variables, local), dialect.rank, size_name);
    return std::nullopt;
  }
  ESPALIER_CHECK_CONFIG(rank.has_value() && size.has_value(),
                        "environment: {} but {}; a rank needs both; set the missing one, or unset "
                        "the other to run alone",
                        rank ? shown(variables, dialect.rank) : shown(variables, size_name),
                        rank ? shown(variables, size_name) : shown(variables, dialect.rank));
  Claim claim{&dialect, *rank, *size, find_number(variables, dialect.local_rank, 0, kMaxRanks - 1),
              find_number(variables, dialect.local_world_size, 1, kMaxRanks)};
  check_range(claim.rank, claim.world_size);
  check_local(claim);
  if (const std::string* hosts = find(variables, "SLURM_STEP_NUM_NODES"); slurm && hosts != nullptr && *hosts == "1")
    claim.local_world_size = FoundNumber{claim.world_size.value, "SLURM_STEP_NUM_NODES"};
  if (slurm && claim.world_size.value == 1) return std::nullopt;  // a one-task step: nobody to meet
  return claim;
}

// torchrun inside an srun step is a launcher of its own; RANK set by hand only repeats what Slurm
// says.
bool replaces_slurm(const Variables& variables, const Claim& claim) {
  return claim.dialect->launcher != Launcher::torchrun || find(variables, "TORCHELASTIC_RUN_ID") != nullptr;
}

void check_agreement(const Variables& variables, const std::vector<Claim>& claims) {
  const Claim& first = claims.front();
  for (const Claim& other : claims) {
    if (other.dialect->launcher == Launcher::slurm && replaces_slurm(variables, first)) continue;
    ESPALIER_CHECK_CONFIG(first.agrees(other),
                          "environment: two launchers disagree: {}, but {}; start the program with "
                          "one of them, or unset "
                          "the variables of the other",
                          first.to_string(), other.to_string());
  }
}

FoundNumber local_rank_of(const std::vector<Claim>& claims) {
  const Claim& first = claims.front();
  for (const Claim& claim : claims)
    if (claim.local_rank && claim.agrees(first)) return *claim.local_rank;
  ESPALIER_CHECK_CONFIG(first.world_size.value == 1,
                        "environment: {}={} of {}={} but {} is unset; it tells the ranks of one "
                        "host apart; set it to this "
                        "process's number on its host, from 0",
                        first.rank.variable, first.rank.value, first.world_size.variable, first.world_size.value,
                        first.dialect->local_rank);
  return {0};
}

void find_meeting_place(const Variables& variables, RankEnvironment& found) {
  const bool own = found.launcher == Launcher::espalier_run;
  const char* address = own ? "ESPALIER_MASTER_ADDR" : "MASTER_ADDR";
  const char* port = own ? "ESPALIER_MASTER_PORT" : "MASTER_PORT";
  found.master_address = find_text(variables, address);
  found.master_port = find_number(variables, port, 1, 65535);
  ESPALIER_CHECK_CONFIG(found.master_address.has_value() == found.master_port.has_value(),
                        "environment: {} but {}; the ranks meet at both; set the missing one to "
                        "the same value on all ranks",
                        found.master_address ? shown(variables, address) : shown(variables, port),
                        found.master_address ? shown(variables, port) : shown(variables, address));
  const bool needed = own || found.launcher == Launcher::torchrun;
  ESPALIER_CHECK_CONFIG(found.master_address || !needed,
                        "environment: {}={} of {}={} but {} and {} are unset; set them to the host "
                        "of rank 0 and a free "
                        "port there, the same on all ranks",
                        found.rank.variable, found.rank.value, found.world_size.variable, found.world_size.value,
                        address, port);
  if (own && found.rank.value == 0) found.store_descriptor = find_number(variables, "ESPALIER_STORE_FD", 0, kMaxRanks);
  const std::string* agent = find(variables, "TORCHELASTIC_USE_AGENT_STORE");
  found.agent_serves_store = found.launcher == Launcher::torchrun && agent != nullptr && *agent == "True";
}

// A job's name and, after a dot, which of its runs this is.
std::optional<FoundText> find_numbered_job(const Variables& variables, const char* name, const char* run_name) {
  auto job = find_text(variables, name);
  const std::string* run = find(variables, run_name);
  if (!job || run == nullptr) return job;
  return FoundText{job->value + "." + *run, job->variable + ", " + run_name};
}

std::optional<FoundText> find_job(const Variables& variables, Launcher launcher) {
  switch (launcher) {
    case Launcher::alone:
      return std::nullopt;
    case Launcher::espalier_run:
      return find_text(variables, "ESPALIER_JOB");
    case Launcher::torchrun:
      return find_numbered_job(variables, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT");
    case Launcher::open_mpi:
      return find_text(variables, "PMIX_NAMESPACE");
    case Launcher::mpich:  // names its jobs only over its own protocol; inside a Slurm job each
                           // start is a step
    case Launcher::slurm:
      return find_numbered_job(variables, "SLURM_JOB_ID", "SLURM_STEP_ID");
  }
  return std::nullopt;
}

// A launcher that speaks PMIx says a process's rank there, but not of how many. (Slurm does, and a step of one task is
// alone.)
void check_alone(const Variables& variables) {
  ESPALIER_CHECK_CONFIG(find(variables, "PMIX_RANK") == nullptr || find(variables, "SLURM_PROCID") != nullptr,
                        "environment: {} but no variable says how many ranks there are; start the program with mpirun "
                        "or srun and leave it their variables (OMPI_COMM_WORLD_SIZE), or unset PMIX_RANK to run alone",
                        shown(variables, "PMIX_RANK"));
}

}  // namespace

Variables process_variables() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (const auto equals = text.find('='); equals != std::string_view::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

Variables with_variables(Variables base, const Variables& added) {
  for (const auto& [name, value] : added) base.insert_or_assign(name, value);
  return base;
}

std::string_view to_string(Launcher launcher) {
  switch (launcher) {
    case Launcher::alone:
      return "alone";
    case Launcher::espalier_run:
      return "espalier run";
    case Launcher::torchrun:
      return "torchrun";
    case Launcher::open_mpi:
      return "Open MPI";
    case Launcher::mpich:
      return "MPICH";
    case Launcher::slurm:
      return "Slurm";
  }
  return "unknown";
}

RankEnvironment discover_ranks(const Variables& variables) {
  std::vector<Claim> claims;
  for (const Dialect& dialect : kDialects)
    if (auto claim = read_claim(variables, dialect)) claims.push_back(*std::move(claim));
  if (claims.empty()) {
    check_alone(variables);
    return {};
  }
  check_agreement(variables, claims);

  const Claim& claim = claims.front();
  RankEnvironment found{.launcher = claim.dialect->launcher, .rank = claim.rank, .world_size = claim.world_size};
  found.local_rank = local_rank_of(claims);
  found.local_world_size = claim.local_world_size;
  found.job = find_job(variables, found.launcher);
  if (found.world_size.value > 1) find_meeting_place(variables, found);
  return found;
}

Variables variables_of_rank(Variables base, const Assignment& assignment) {
  for (const Dialect& dialect : kDialects) {
    if (dialect.launcher == Launcher::slurm) continue;  // others in the job may want them, discovery does not
    for (const char* name : {dialect.rank, dialect.world_size, dialect.local_rank, dialect.local_world_size})
      base.erase(name);
  }
  base["ESPALIER_RANK"] = std::to_string(assignment.rank);
  base["ESPALIER_WORLD_SIZE"] = std::to_string(assignment.num_ranks);
  base["ESPALIER_LOCAL_RANK"] = std::to_string(assignment.local_rank);
  base["ESPALIER_LOCAL_WORLD_SIZE"] = std::to_string(assignment.local_size);
  base["ESPALIER_MASTER_ADDR"] = assignment.address;
  base["ESPALIER_MASTER_PORT"] = std::to_string(assignment.port);
  base["ESPALIER_JOB"] = assignment.job;
  base.emplace("OMP_NUM_THREADS", "1");  // ranks that each take all cores wait for one another most of the time
  base.erase("ESPALIER_STORE_FD");
  if (assignment.store_descriptor >= 0) base["ESPALIER_STORE_FD"] = std::to_string(assignment.store_descriptor);
  if (!assignment.host.empty()) base["ESPALIER_HOST"] = assignment.host;
  return base;
}

std::vector<std::string> rank_variables(const Variables& variables) {
  std::vector<std::string> lines;
  const auto add = [&](const char* name) {
    if (name != nullptr && find(variables, name) != nullptr) lines.push_back(shown(variables, name));
  };
  for (const Dialect& dialect : kDialects)
    for (const char* name : {dialect.rank, dialect.world_size, dialect.local_rank, dialect.local_world_size}) add(name);
  for (const char* name : kOtherVariables) add(name);
  return lines;
}

}  // namespace espalier
