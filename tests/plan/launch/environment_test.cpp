// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/launch/environment.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "espalier/base/error.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;

// "launcher rank/world local/local_world@address:port job", "-" for what is not known.
std::string summary(const RankEnvironment& found) {
  return fmt::format(
      "{} {}/{} {}/{} {}:{} {}", to_string(found.launcher), found.rank.value, found.world_size.value,
      found.local_rank.value, found.local_world_size ? std::to_string(found.local_world_size->value) : "-",
      found.master_address ? found.master_address->value : "-",
      found.master_port ? std::to_string(found.master_port->value) : "-", found.job ? found.job->value : "-");
}

struct Understood {
  const char* what;
  Variables variables;
  const char* expected;
};

TEST(Environment, UnderstandsEveryLauncher) {
  const std::vector<Understood> table{
      {"nothing", {}, "alone 0/1 0/- -:- -"},
      {"unrelated", {{"PATH", "/bin"}, {"MASTER_ADDR", "a"}, {"WORLD", "7"}}, "alone 0/1 0/- -:- -"},
      {"espalier run",
       {{"ESPALIER_RANK", "2"},
        {"ESPALIER_WORLD_SIZE", "4"},
        {"ESPALIER_LOCAL_RANK", "2"},
        {"ESPALIER_LOCAL_WORLD_SIZE", "4"},
        {"ESPALIER_MASTER_ADDR", "127.0.0.1"},
        {"ESPALIER_MASTER_PORT", "4711"},
        {"ESPALIER_JOB", "j"},
        {"MASTER_ADDR", "other"}},
       "espalier run 2/4 2/4 127.0.0.1:4711 j"},
      {"torchrun on two hosts",
       {{"RANK", "3"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "n0"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_RUN_ID", "r"},
        {"TORCHELASTIC_RESTART_COUNT", "1"}},
       "torchrun 3/4 1/2 n0:29500 r.1"},
      {"a world of one needs no meeting place", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "torchrun 0/1 0/- -:- -"},
      {"Open MPI",
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"PMIX_NAMESPACE", "77.1"}},
       "Open MPI 1/2 1/2 -:- 77.1"},
      {"MPICH",
       {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}},
       "MPICH 0/2 0/2 -:- -"},
      {"srun",
       {{"SLURM_PROCID", "5"},
        {"SLURM_NTASKS", "8"},
        {"SLURM_STEP_NUM_TASKS", "6"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_JOB_ID", "12"},
        {"SLURM_STEP_ID", "3"},
        {"MASTER_ADDR", "n0"},
        {"MASTER_PORT", "1"}},
       "Slurm 5/6 1/- n0:1 12.3"},
      {"Slurm's short form",
       {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}},
       "Slurm 1/2 1/- -:- -"},
      {"srun on one host",
       {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_NUM_NODES", "1"}},
       "Slurm 1/2 1/2 -:- -"},
      {"a one-task Slurm step",
       {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "0"}},
       "alone 0/1 0/- -:- -"},
      {"a job script outside any step",
       {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "12"}},
       "alone 0/1 0/- -:- -"},
      {"a one-task Slurm step whose Slurm speaks PMIx",
       {{"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "1"},
        {"SLURM_JOB_ID", "12"},
        {"SLURM_STEP_ID", "0"},
        {"PMIX_RANK", "0"}},
       "alone 0/1 0/- -:- -"},
      {"an allocation's shell", {{"SLURM_JOB_ID", "12"}, {"SLURM_NTASKS", "4"}}, "alone 0/1 0/- -:- -"},
      {"srun with PMI: Slurm knows the local rank",
       {{"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_JOB_ID", "12"},
        {"SLURM_STEP_ID", "0"}},
       "MPICH 1/2 0/- -:- 12.0"},
      {"mpirun's daemons run in a Slurm step of their own",
       {{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_LOCALID", "0"}},
       "Open MPI 3/4 1/2 -:- -"},
      {"one torchrun a Slurm task",
       {{"RANK", "3"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "1"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "n0"},
        {"MASTER_PORT", "1"},
        {"TORCHELASTIC_RUN_ID", "r"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_LOCALID", "0"}},
       "torchrun 3/4 1/2 n0:1 r"},
      {"RANK copied from Open MPI's variables",
       {{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "n0"},
        {"MASTER_PORT", "1"},
        {"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}},
       "torchrun 1/2 0/- n0:1 -"},
  };
  for (const Understood& row : table) {
    try {
      EXPECT_EQ(summary(discover_ranks(row.variables)), row.expected) << row.what;
    } catch (const Error& error) {
      ADD_FAILURE() << row.what << ": " << error.what();
    }
  }
}

struct Refused {
  Variables variables;
  std::vector<const char*> mentions;
};

TEST(Environment, RefusesContradictionsAndNamesThem) {
  const std::vector<Refused> table{
      {{{"RANK", "4"}, {"WORLD_SIZE", "4"}}, {"RANK=4", "WORLD_SIZE=4", "0 to 3"}},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "4"}}, {"RANK=-1", "not a whole number"}},
      {{{"RANK", "1x"}, {"WORLD_SIZE", "4"}}, {"RANK=1x", "not a whole number", "unset"}},
      {{{"RANK", ""}, {"WORLD_SIZE", "4"}}, {"RANK= ", "not a whole number"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE=0", "from 1"}},
      {{{"RANK", "99999999999999999999"}, {"WORLD_SIZE", "4"}}, {"RANK=99999999999999999999"}},
      {{{"RANK", "1"}}, {"RANK=1", "WORLD_SIZE unset"}},
      {{{"WORLD_SIZE", "4"}}, {"WORLD_SIZE=4", "RANK unset"}},
      {{{"LOCAL_RANK", "1"}}, {"LOCAL_RANK=1", "RANK and WORLD_SIZE are unset"}},
      {{{"ESPALIER_WORLD_SIZE", "4"}}, {"ESPALIER_WORLD_SIZE=4", "ESPALIER_RANK unset"}},
      {{{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}, {"OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_COMM_WORLD_RANK"}},
      {{{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}, {"PMI_RANK=2", "PMI_SIZE=2"}},
      {{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "77.1"}}, {"PMIX_RANK=1", "how many ranks", "OMPI_COMM_WORLD_SIZE"}},
      {{{"SLURM_PROCID", "2"}}, {"SLURM_PROCID=2", "SLURM_NTASKS unset"}},
      {{{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "2"}}, {"SLURM_PROCID=2", "SLURM_NTASKS=2"}},
      {{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}, {"SLURM_PROCID=1", "SLURM_LOCALID is unset"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
       {"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK is unset", "set it"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "4"}}, {"LOCAL_RANK=4", "WORLD_SIZE=4"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
       {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "8"}},
       {"LOCAL_WORLD_SIZE=8", "WORLD_SIZE=4"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}},
       {"MASTER_ADDR and MASTER_PORT are unset", "set them"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}},
       {"MASTER_ADDR=a", "MASTER_PORT unset"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}},
       {"MASTER_PORT=70000", "1 to 65535"}},
      {{{"ESPALIER_RANK", "1"}, {"ESPALIER_WORLD_SIZE", "2"}, {"ESPALIER_LOCAL_RANK", "1"}},
       {"ESPALIER_MASTER_ADDR and ESPALIER_MASTER_PORT are unset"}},
      {{{"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "2"}},
       {"two launchers disagree", "torchrun says rank 1 of 2", "Open MPI says rank 0 of 2", "OMPI_COMM_WORLD_RANK=0"}},
      {{{"ESPALIER_RANK", "0"}, {"ESPALIER_WORLD_SIZE", "2"}, {"RANK", "0"}, {"WORLD_SIZE", "4"}},
       {"espalier run says rank 0 of 2", "torchrun says rank 0 of 4"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}},
       {"torchrun says rank 0 of 2", "Slurm says rank 1 of 2"}},
  };
  for (const Refused& row : table) {
    std::string listing;
    for (const std::string& line : rank_variables(row.variables)) listing += line + " ";
    try {
      ADD_FAILURE() << listing << "was accepted: " << summary(discover_ranks(row.variables));
    } catch (const ConfigError& error) {
      for (const char* mention : row.mentions) EXPECT_THAT(error.what(), HasSubstr(mention)) << listing;
    }
  }
}

TEST(Environment, SaysWhereEachValueCameFrom) {
  const RankEnvironment found = discover_ranks({{"PMI_RANK", "1"},
                                                {"PMI_SIZE", "2"},
                                                {"SLURM_PROCID", "1"},
                                                {"SLURM_NTASKS", "2"},
                                                {"SLURM_LOCALID", "0"},
                                                {"MASTER_ADDR", "n0"},
                                                {"MASTER_PORT", "1"}});
  EXPECT_EQ(found.rank.variable, "PMI_RANK");
  EXPECT_EQ(found.world_size.variable, "PMI_SIZE");
  EXPECT_EQ(found.local_rank.variable, "SLURM_LOCALID");
  EXPECT_EQ(found.master_address->variable, "MASTER_ADDR");
  EXPECT_EQ(discover_ranks({}).rank.variable, "");
}

TEST(Environment, KnowsWhoServesTheStore) {
  Variables run{{"ESPALIER_RANK", "0"},        {"ESPALIER_WORLD_SIZE", "2"},
                {"ESPALIER_LOCAL_RANK", "0"},  {"ESPALIER_MASTER_ADDR", "127.0.0.1"},
                {"ESPALIER_MASTER_PORT", "1"}, {"ESPALIER_STORE_FD", "7"}};
  EXPECT_EQ(discover_ranks(run).store_descriptor->value, 7);
  run["ESPALIER_RANK"] = "1";
  EXPECT_FALSE(discover_ranks(run).store_descriptor.has_value());

  Variables torchrun{{"RANK", "0"},        {"WORLD_SIZE", "2"},  {"LOCAL_RANK", "0"},
                     {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_TRUE(discover_ranks(torchrun).agent_serves_store);
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(discover_ranks(torchrun).agent_serves_store);
}

TEST(Environment, ReadsBackWhatItTellsARank) {
  const Variables variables = variables_of_rank(
      {{"HOME", "/"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PMI_RANK", "7"}},
      {.rank = 1, .num_ranks = 3, .local_rank = 1, .local_size = 3, .address = "127.0.0.1", .port = 4711, .job = "j"});
  EXPECT_EQ(summary(discover_ranks(variables)), "espalier run 1/3 1/3 127.0.0.1:4711 j");
  EXPECT_EQ(variables.at("HOME"), "/");
  EXPECT_FALSE(variables.contains("RANK"));
  EXPECT_EQ(discover_ranks(variables_of_rank({}, {.rank = 0,
                                                  .num_ranks = 3,
                                                  .local_rank = 0,
                                                  .local_size = 3,
                                                  .address = "127.0.0.1",
                                                  .port = 4711,
                                                  .store_descriptor = 5,
                                                  .job = "j"}))
                .store_descriptor->value,
            5);
}

TEST(Environment, ReadsTheVariablesOfThisProcess) {
  ASSERT_EQ(setenv("ESPALIER_TEST_VARIABLE", "a=b", 1), 0);
  EXPECT_EQ(process_variables().at("ESPALIER_TEST_VARIABLE"), "a=b");
}

TEST(Environment, ListsWhatIsSet) {
  EXPECT_EQ(rank_variables({{"RANK", "1"}, {"HOME", "/"}, {"ESPALIER_BACKEND", "gloo"}}),
            (std::vector<std::string>{"RANK=1", "ESPALIER_BACKEND=gloo"}));
}

}  // namespace
}  // namespace espalier
