// SPDX-License-Identifier: Apache-2.0
// Group plans that come alive on processes, and a process that dies among them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/program.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;
using namespace testing_support;

class GroupSetProcesses : public testing::TestWithParam<const char*> {
 protected:
  // Four ranks as if started by mpirun: nobody ends the others when one dies.
  static std::vector<std::unique_ptr<Program>> start(const std::string& what, const std::string& timeout_ms) {
    std::vector<std::unique_ptr<Program>> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.push_back(std::make_unique<Program>(
          std::vector<std::string>{ESPALIER_TEST_BIN "/world_probe", what, timeout_ms},
          std::map<std::string, std::string>{{"ESPALIER_BACKEND", GetParam()},
                                             {"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                                             {"OMPI_COMM_WORLD_SIZE", "4"},
                                             {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
                                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                             {"PMIX_NAMESPACE", what + std::to_string(getpid())}}));
    }
    return ranks;
  }
};
INSTANTIATE_TEST_SUITE_P(, GroupSetProcesses, testing::Values("host", "gloo"));

TEST_P(GroupSetProcesses, CommunicateAsPlannedThroughEveryGroupOfEveryPlan) {
  const auto ranks = start("plans", "20000");
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->wait(milliseconds(50'000)), 0) << rank->output() << rank->error();
    EXPECT_EQ(rank->output(), "");
  }
}

TEST_P(GroupSetProcesses, EndInTimeWhenOneDiesBeforeItsGroupsAreMade) {
  for (const char* what : {"die_before_agreement", "die_after_agreement"}) {
    const auto ranks = start(what, "4000");
    EXPECT_EQ(ranks[2]->wait(), 128 + SIGKILL);
    const auto died = TestClock::now();
    for (const std::size_t rank : {0, 1, 3}) {
      EXPECT_EQ(ranks[rank]->wait(), 3) << ranks[rank]->output() << ranks[rank]->error();
      EXPECT_THAT(ranks[rank]->output(), HasSubstr("CommError: "));
    }
    EXPECT_LT(seconds_since(died), 10.0);
    std::cout << ranks[0]->output();
    // Gloo sees a connection that closes, not whose it was; and while groups connect, the first rank whose time is over
    // speaks for all, though it may have waited for one that itself waited.
    if (GetParam() == std::string("host")) {
      EXPECT_THAT(ranks[0]->output(), HasSubstr("rank 2"));
    } else if (what == std::string("die_after_agreement")) {
      EXPECT_THAT(ranks[0]->output(), HasSubstr("did not come"));
    }
  }
}

}  // namespace
}  // namespace espalier
