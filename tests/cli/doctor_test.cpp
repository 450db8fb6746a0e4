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
  for (const char* mention : {"built in\n", "version", "host\n", "cores", "memfd                 yes",
                              "pidfd                 yes", "launcher              alone", "ESPALIER_BACKEND=gloo",
                              "backend               gloo  (ESPALIER_BACKEND says so)", "  send and recv         yes\n",
                              "  int16 reductions      "})
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

TEST(Doctor, SaysWhichBackendItWouldTakeAndWhy) {
  Program program({kEspalier, "run", "-n", "2", "--", "sh", "-c",
                   "test $ESPALIER_RANK = 1 || exec " + kEspalier + " doctor --json"},
                  {{"ESPALIER_BACKEND", ""}});
  EXPECT_EQ(program.wait(), 0);
  const auto report = nlohmann::json::parse(program.output());
  EXPECT_EQ(report["ranks"]["backend"]["value"], "host");
  EXPECT_THAT(report["ranks"]["backend"]["why"].get<std::string>(), HasSubstr("all 2 ranks are on this host"));
  EXPECT_EQ(report["capabilities"]["int16 reductions"]["host"], "yes");
  EXPECT_EQ(report["capabilities"]["int16 reductions"]["gloo"], "emulated: in int32");
}

TEST(Doctor, ShowsAContradictionAndEndsWithTheCodeOfAnUnusableRequest) {
  Program program({kEspalier, "doctor"}, {{"RANK", "4"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(program.wait(), 2);
  EXPECT_THAT(program.output(), HasSubstr("RANK=4, WORLD_SIZE=4"));
  EXPECT_THAT(program.error(), HasSubstr("RANK=4 but WORLD_SIZE=4"));
}

}  // namespace
}  // namespace espalier
