// SPDX-License-Identifier: Apache-2.0
// Processes that become a world: under `espalier run`, with variables as torchrun sets them, and
// with what goes wrong.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/program.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;
using namespace testing_support;
using Settings = std::map<std::string, std::string>;

const std::string kEspalier = ESPALIER_TEST_BIN "/espalier";
const std::string kProbe = ESPALIER_TEST_BIN "/world_probe";

// A port that was free a moment ago.
int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(descriptor, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  close(descriptor);
  return ntohs(address.sin_port);
}

Settings torch_rank(int rank, int size, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
}

std::unique_ptr<Program> probe(const Settings& settings, const std::string& what = "", int timeout_ms = 20000) {
  return std::make_unique<Program>(std::vector<std::string>{kProbe, what, std::to_string(timeout_ms)}, settings);
}

class WorldEnvironment : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, WorldEnvironment, testing::Values("host", "gloo"));

TEST_P(WorldEnvironment, MakesAWorldUnderEspalierRun) {
  Program program({kEspalier, "run", "-n", "3", "--", kProbe}, {{"ESPALIER_BACKEND", GetParam()}});
  EXPECT_EQ(program.wait(), 0) << program.output() << program.error();
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(program.output(),
                HasSubstr(fmt::format("rank {} of 3 local {} of 3 {} espalier run sum 6\n", rank, rank, GetParam())));
  EXPECT_EQ(program.error(), "");
}

TEST_P(WorldEnvironment, MakesOneWorldAfterAnother) {
  Program program({kEspalier, "run", "-n", "2", "--", kProbe, "worlds"}, {{"ESPALIER_BACKEND", GetParam()}});
  EXPECT_EQ(program.wait(milliseconds(50000)), 0) << program.output() << program.error();
}

TEST_P(WorldEnvironment, DeliversWhatWasSentByARankThatLeaves) {
  Program program({kEspalier, "run", "-n", "3", "--", kProbe, "leave"}, {{"ESPALIER_BACKEND", GetParam()}});
  EXPECT_EQ(program.wait(), 0) << program.output() << program.error();
  EXPECT_THAT(program.output(), HasSubstr("received 7\n"));
}

TEST_P(WorldEnvironment, EndsOnAllRanksSoonAfterOneDied) {
  auto settings = [&](int rank, int port) {
    Settings all = torch_rank(rank, 3, port);
    all["ESPALIER_BACKEND"] = GetParam();
    return all;
  };
  const int port = free_port();
  const auto first = probe(settings(0, port), "die"), second = probe(settings(1, port), "die"),
             third = probe(settings(2, port), "die");
  EXPECT_EQ(second->wait(), 128 + SIGABRT);
  const auto start = TestClock::now();
  EXPECT_EQ(first->wait(), 3) << first->output() << first->error();
  EXPECT_EQ(third->wait(), 3) << third->output() << third->error();
  EXPECT_LT(seconds_since(start), 2.0);
  EXPECT_THAT(first->output(), HasSubstr("CommError: all_reduce(sum, float32 x 1)"));
  EXPECT_THAT(third->output(), HasSubstr("of group 'world' [0,1,2]"));
}

TEST(WorldEnvironmentAlone, IsAWorldOfOneWithoutALauncher) {
  const auto program = probe({});
  EXPECT_EQ(program->wait(), 0) << program->output();
  EXPECT_EQ(program->output(), "rank 0 of 1 local 0 of 1 host alone sum 1\n");
}

TEST(WorldEnvironmentTorchrun, MakesAWorldFromItsVariables) {
  const int port = free_port();
  const auto first = probe(torch_rank(0, 2, port)), second = probe(torch_rank(1, 2, port));
  EXPECT_EQ(first->wait(), 0) << first->output() << first->error();
  EXPECT_EQ(second->wait(), 0) << second->output() << second->error();
  EXPECT_EQ(second->output(), "rank 1 of 2 local 1 of 2 host torchrun sum 3\n");
}

// A rank that is told to be on this host.
Settings rank_on(const std::string& host, int rank, int size, int port) {
  Settings all = torch_rank(rank, size, port);
  all["ESPALIER_HOST"] = host;
  return all;
}

TEST(WorldEnvironmentHosts, TakeSharedMemoryInsideAHostAndGlooBetween) {
  const int port = free_port();
  std::vector<std::unique_ptr<Program>> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(probe(rank_on(rank < 2 ? "a" : "b", rank, 4, port), "leave"));
  for (int rank = 0; rank < 4; ++rank) {
    Program& one = *ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(one.wait(), 0) << one.output() << one.error();
    EXPECT_THAT(one.output(),
                HasSubstr(fmt::format("rank {} of 4 local {} of 2 hierarchical torchrun sum 10\n", rank, rank % 2)));
    if (rank > 0) {
      EXPECT_THAT(one.output(), HasSubstr("received 7\n"));
    }
  }
}

TEST(WorldEnvironmentHosts, TakeGlooWhereNoneSharesOne) {
  const int port = free_port();
  const auto first = probe(rank_on("a", 0, 2, port)), second = probe(rank_on("b", 1, 2, port));
  EXPECT_EQ(first->wait(), 0) << first->output() << first->error();
  EXPECT_EQ(second->wait(), 0) << second->output() << second->error();
  EXPECT_EQ(second->output(), "rank 1 of 2 local 0 of 1 gloo torchrun sum 3\n");
}

TEST(WorldEnvironmentHosts, TakeWhatIsAskedFor) {
  const std::string each = "ESPALIER_HOST=node$((ESPALIER_RANK / 2)) exec " + kProbe;
  for (const std::string backend : {"gloo", "hierarchical", "host"}) {
    Program program({kEspalier, "run", "-n", "3", "--backend", backend, "--", "/bin/sh", "-c", each});
    if (backend == "host") {
      EXPECT_EQ(program.wait(), 2);
      EXPECT_THAT(program.output(),
                  HasSubstr("needs all ranks on one host, but rank 0 is on node0 and rank 2 on node1; ask for"));
    } else {
      EXPECT_EQ(program.wait(), 0) << program.output() << program.error();
      EXPECT_THAT(program.output(),
                  HasSubstr(fmt::format("rank 1 of 3 local 1 of 2 {} espalier run sum 6\n", backend)));
    }
  }
}

TEST(WorldEnvironmentHosts, NameADeadRankOnEveryHost) {
  TemporaryFolder folder;
  const std::string file = folder.file("postmortem.json");
  const int port = free_port();
  std::vector<std::unique_ptr<Program>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    Settings settings = rank_on(rank < 2 ? "a" : "b", rank, 4, port);
    settings["ESPALIER_POSTMORTEM"] = file;
    ranks.push_back(probe(settings, "die"));
  }
  EXPECT_EQ(ranks[1]->wait(), 128 + SIGABRT);
  const auto start = TestClock::now();
  for (const std::size_t rank : {0, 2, 3}) {
    EXPECT_EQ(ranks[rank]->wait(), 3) << ranks[rank]->output() << ranks[rank]->error();
    EXPECT_THAT(ranks[rank]->output(), testing::ContainsRegex(R"(CommError: .*rank 1 \(pid [0-9]+ on a\) died)"));
    EXPECT_THAT(ranks[rank]->output(), HasSubstr("group 'world"));
  }
  EXPECT_LT(seconds_since(start), 2.0);
  Program shown({kEspalier, "postmortem", file + ".a", file + ".b"});
  EXPECT_EQ(shown.wait(), 0) << shown.error();
  EXPECT_THAT(shown.output(), HasSubstr("2 ranks on a,"));
  EXPECT_THAT(shown.output(), HasSubstr("2 ranks on b,"));
  EXPECT_THAT(shown.output(), testing::ContainsRegex("\n1     [0-9]+ +died"));
  EXPECT_THAT(shown.output(), testing::ContainsRegex("\n3     [0-9]+ "));
}

TEST(WorldEnvironmentOpenMpi, MeetsByTheNameOfItsJob) {
  const std::string job = fmt::format("test{}", getpid());
  std::vector<std::unique_ptr<Program>> ranks;
  for (const char* rank : {"1", "0"})
    ranks.push_back(probe({{"OMPI_COMM_WORLD_RANK", rank},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"PMIX_NAMESPACE", job}}));
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait(), 0) << rank->output() << rank->error();
  EXPECT_EQ(ranks[0]->output(), "rank 1 of 2 local 1 of 2 host Open MPI sum 3\n");
}

TEST(WorldEnvironmentErrors, NamesTheRankThatNeverArrives) {
  const int port = free_port();
  const auto first = probe(torch_rank(0, 3, port), "", 2000), third = probe(torch_rank(2, 3, port), "", 2000);
  for (Program* one : {first.get(), third.get()}) {
    EXPECT_EQ(one->wait(), 3);
    EXPECT_THAT(one->output(), HasSubstr("CommError: world: rank 1 of 3 did not arrive within"));
  }
}

TEST(WorldEnvironmentErrors, RefusesARankThatWasStartedTwice) {
  const int port = free_port();
  const auto zero = probe(torch_rank(0, 3, port)), one = probe(torch_rank(1, 3, port)),
             again = probe(torch_rank(1, 3, port));
  for (Program* program : {zero.get(), one.get(), again.get()}) {
    EXPECT_EQ(program->wait(), 2) << program->output() << program->error();
    EXPECT_THAT(program->output(), HasSubstr("ConfigError: world: rank 1 is there twice: pid "));
    EXPECT_THAT(program->output(), HasSubstr(fmt::format("127.0.0.1:{}", port)));
  }
}

TEST(WorldEnvironmentErrors, RefusesRanksThatExpectOtherWorlds) {
  const int port = free_port();
  const auto zero = probe(torch_rank(0, 2, port)), one = probe(torch_rank(1, 3, port));
  for (Program* program : {zero.get(), one.get()}) {
    EXPECT_EQ(program->wait(), 2) << program->output() << program->error();
    EXPECT_THAT(program->output(), HasSubstr("two programs share the address"));
    EXPECT_THAT(program->output(), HasSubstr("expects 2"));
    EXPECT_THAT(program->output(), HasSubstr("expects 3"));
  }
}

TEST(WorldEnvironmentErrors, RefusesAnAddressThatAnotherProgramServes) {
  const int port = free_port();
  const auto holder = probe(torch_rank(0, 2, port), "", 20000);
  ASSERT_TRUE(eventually([&] {
    Program check({"/bin/bash", "-c", fmt::format("exec 3<>/dev/tcp/127.0.0.1/{}", port)});
    return check.wait() == 0;
  }));
  const auto other = probe(torch_rank(0, 2, port));
  EXPECT_EQ(other->wait(), 2) << other->output() << other->error();
  EXPECT_THAT(other->output(), HasSubstr(fmt::format("cannot serve the store at 127.0.0.1:{}", port)));
}

TEST(WorldEnvironmentErrors, RefusesDifferentBackends) {
  const int port = free_port();
  Settings gloo = torch_rank(1, 2, port);
  gloo["ESPALIER_BACKEND"] = "gloo";
  const auto zero = probe(torch_rank(0, 2, port)), one = probe(gloo);
  for (Program* program : {zero.get(), one.get()}) {
    EXPECT_EQ(program->wait(), 2) << program->output() << program->error();
    EXPECT_THAT(program->output(), HasSubstr("asks for backend"));
  }
}

TEST(WorldEnvironmentErrors, RefusesALimitThatIsNoNumber) {
  const auto program = probe({{"ESPALIER_HOST_BUFFER_BYTES", "16GiB"}});
  EXPECT_EQ(program->wait(), 2) << program->output();
  EXPECT_THAT(program->output(), HasSubstr("ESPALIER_HOST_BUFFER_BYTES=16GiB: expected a number of bytes"));
}

TEST(WorldEnvironmentErrors, RefusesAnUnknownBackend) {
  const auto program = probe({{"ESPALIER_BACKEND", "carrier-pigeon"}});
  EXPECT_EQ(program->wait(), 2);
  EXPECT_THAT(program->output(), HasSubstr("ESPALIER_BACKEND=carrier-pigeon: "));
}

TEST(WorldEnvironmentErrors, RefusesAChoiceThatIsNone) {
  const auto program = probe({{"ESPALIER_CHECK_CALLS", "maybe"}});
  EXPECT_EQ(program->wait(), 2);
  EXPECT_THAT(program->output(), HasSubstr("ESPALIER_CHECK_CALLS=maybe; expected 0 or 1"));
}

TEST(WorldEnvironmentErrors, AsksForAnAddressWhereTheRanksMayBeOnSeveralHosts) {
  const auto program = probe({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(program->wait(), 2);
  EXPECT_THAT(program->output(), HasSubstr("Slurm gives rank 1 of 2 no address to meet at"));
  EXPECT_THAT(program->output(), HasSubstr("set MASTER_ADDR"));
}

}  // namespace
}  // namespace espalier
