// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/program.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;
using testing::Not;
using namespace testing_support;

const std::string kEspalier = ESPALIER_TEST_BIN "/espalier";

TEST(Doctor, ReportsWhatItFindsAsText) {
  Program program({kEspalier, "doctor"}, {{"ESPALIER_BACKEND", "gloo"}});
  EXPECT_EQ(program.wait(), 0);
  for (const char* mention :
       {"built in\n", "version", "host\n", "cores", "memfd                 yes",
        "pidfd                 yes", "launcher              alone", "ESPALIER_BACKEND=gloo"})
    EXPECT_THAT(program.output(), HasSubstr(mention));
}

TEST(Doctor, SaysAsJsonWhereEachValueCameFrom) {
  Program program({kEspalier, "run", "-n", "1", "--", kEspalier, "doctor", "--json"});
  EXPECT_EQ(program.wait(), 0);
  const auto ranks = nlohmann::json::parse(program.output())["ranks"];
  EXPECT_EQ(ranks["launcher"], "espalier run");
  EXPECT_EQ(ranks["world_size"]["value"], 1);
  EXPECT_EQ(ranks["world_size"]["from"], "ESPALIER_WORLD_SIZE");
}

TEST(Doctor, ShowsAContradictionAndEndsWithTheCodeOfAnUnusableRequest) {
  Program program({kEspalier, "doctor"}, {{"RANK", "4"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(program.wait(), 2);
  EXPECT_THAT(program.output(), HasSubstr("RANK=4, WORLD_SIZE=4"));
  EXPECT_THAT(program.error(), HasSubstr("RANK=4 but WORLD_SIZE=4"));
}

}  // namespace
}  // namespace espalier
