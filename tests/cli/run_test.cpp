// SPDX-License-Identifier: Apache-2.0
// `espalier run`, with shell scripts as ranks. A marker that nobody else has, as the time of a
// `sleep`, shows whether anything is left.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/program.hpp"

namespace espalier {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using namespace testing_support;

constexpr double kEndSeconds = 2.0;  // what the command promises

const std::map<std::string, std::string> kNoLauncher{
    {"RANK", ""}, {"WORLD_SIZE", ""}, {"ESPALIER_RANK", ""}, {"ESPALIER_WORLD_SIZE", ""}};

std::vector<std::string> run_words(int ranks, const std::string& script) {
  return {ESPALIER_TEST_BIN "/espalier", "run", "-n", std::to_string(ranks), "--", "/bin/sh", "-c", script};
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

// A time to sleep for that only this test process uses.
std::string marker() {
  return fmt::format("9{}.{}", getpid(), TestClock::now().time_since_epoch().count() % 100000000);
}

// Waits until `count` processes sleep for the marked time.
bool asleep(const std::string& mark, int count) {
  const std::string words = std::string("sleep") + '\0' + mark;
  return eventually([&] { return count_processes(words) == count; });
}

bool nothing_left(const std::string& mark) {
  return eventually([&] { return count_processes(mark) == 0; }, milliseconds(2000));
}

TEST(Run, TellsEveryRankWhoItIs) {
  Program program(run_words(3,
                            "echo $ESPALIER_RANK of $ESPALIER_WORLD_SIZE, $ESPALIER_LOCAL_RANK of "
                            "$ESPALIER_LOCAL_WORLD_SIZE, ${ESPALIER_STORE_FD:+serves}"),
                  kNoLauncher);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(sorted_lines(program.output()),
            (std::vector<std::string>{"0 of 3, 0 of 3, serves", "1 of 3, 1 of 3,", "2 of 3, 2 of 3,"}));
  EXPECT_EQ(program.error(), "");
}

TEST(Run, ReplacesWhatAnotherLauncherSaidAboutAWorldOfOne) {
  Program program(run_words(2, "echo ${RANK-unset}"), {{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "unset\nunset\n");
}

TEST(Run, PassesExitCodesOnAndNamesTheRank) {
  for (const int code : {1, 2, 3, 4, 77}) {
    Program program(run_words(3, fmt::format("test $ESPALIER_RANK != 1 || exit {}", code)), kNoLauncher);
    EXPECT_EQ(program.wait(), code);
    EXPECT_THAT(program.error(), StartsWith("espalier run: rank 1 of 3 (pid "));
    EXPECT_THAT(program.error(), HasSubstr(fmt::format(") ended with exit code {}", code)));
  }
}

TEST(Run, EndsTheOthersWhenARankCrashes) {
  const std::string mark = marker();
  const auto start = TestClock::now();
  Program program(run_words(4, "test $ESPALIER_RANK != 2 || kill -SEGV $$; trap '' TERM; sleep " + mark), kNoLauncher);
  EXPECT_EQ(program.wait(), 128 + SIGSEGV);
  EXPECT_LT(seconds_since(start), kEndSeconds);
  EXPECT_THAT(program.error(), StartsWith("espalier run: rank 2 of 4 (pid "));
  EXPECT_THAT(program.error(), EndsWith(") was killed by signal 11 (SIGSEGV); ending the other 3\n"));
  EXPECT_EQ(sorted_lines(program.error()).size(), 1U);
  EXPECT_TRUE(nothing_left(mark));
}

TEST(Run, EndsTheOthersWhenARankIsKilledFromOutside) {
  const std::string mark = marker();
  Program program(run_words(3, "echo $ESPALIER_RANK $$; exec sleep " + mark), kNoLauncher);
  ASSERT_TRUE(asleep(mark, 3));
  ASSERT_TRUE(eventually([&] { return sorted_lines(program.output()).size() == 3; }));
  const std::string victim = sorted_lines(program.output()).at(1).substr(2);
  const auto start = TestClock::now();
  kill(std::stoi(victim), SIGKILL);
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_LT(seconds_since(start), kEndSeconds);
  EXPECT_EQ(program.error(), fmt::format("espalier run: rank 1 of 3 (pid {}) was killed by signal "
                                         "9 (SIGKILL); ending the other 2\n",
                                         victim));
  EXPECT_TRUE(nothing_left(mark));
}

TEST(Run, LetsSurvivorsSayWhatTheySawBeforeTheyEnd) {
  Program program(run_words(2, "test $ESPALIER_RANK != 1 || kill -KILL $$; sleep 0.2; echo rank 1 is gone; exit 3"),
                  kNoLauncher);
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_EQ(program.output(), "rank 1 is gone\n");
}

TEST(Run, BlamesTheCauseRatherThanTheRankThatNoticedFirst) {
  Program program(run_words(2, "test $ESPALIER_RANK != 1 && exit 3; sleep 0.2; exit 9"), kNoLauncher);
  EXPECT_EQ(program.wait(), 9);
  EXPECT_THAT(program.error(), StartsWith("espalier run: rank 1 of 2"));
}

class RunSignal : public testing::TestWithParam<int> {};

TEST_P(RunSignal, EndsAllRanksEvenThoseThatIgnoreIt) {
  const std::string mark = marker();
  Program program(run_words(3, "trap '' TERM INT; (sleep " + mark + ") & sleep " + mark), kNoLauncher);
  ASSERT_TRUE(asleep(mark, 6));
  const auto start = TestClock::now();
  program.send(GetParam());
  EXPECT_EQ(program.wait(), 128 + GetParam());
  EXPECT_LT(seconds_since(start), kEndSeconds);
  EXPECT_EQ(program.error(), "");
  EXPECT_TRUE(nothing_left(mark));
}

INSTANTIATE_TEST_SUITE_P(, RunSignal, testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST(Run, EndsStoppedRanksToo) {
  const std::string mark = marker();
  Program program(run_words(2, "sleep " + mark + " & kill -STOP $$"), kNoLauncher);
  ASSERT_TRUE(asleep(mark, 2));
  const auto start = TestClock::now();
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_LT(seconds_since(start), kEndSeconds);
  EXPECT_TRUE(nothing_left(mark));
}

TEST(Run, LeavesNothingWhenTheLauncherItselfIsKilled) {
  const std::string mark = marker();
  Program program(run_words(3, "(sleep " + mark + ") & sleep " + mark), kNoLauncher);
  ASSERT_TRUE(asleep(mark, 6));
  program.send(SIGKILL);
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_TRUE(nothing_left(mark));
}

TEST(Run, LeavesNothingBehindWhenAllEndsWell) {
  const std::string mark = marker();
  Program program(run_words(2, "sleep " + mark + " & setsid sleep " + mark + " & sleep 0.2"), kNoLauncher);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(count_processes(mark), 0);
}

TEST(Run, PassesWholeLinesOn) {
  Program program(run_words(4,
                            "for i in 1 2 3 4 5; do printf \"<$ESPALIER_RANK\"; sleep 0.01; printf "
                            "\"$ESPALIER_RANK>\\n\"; done; printf end"),
                  kNoLauncher);
  EXPECT_EQ(program.wait(), 0);
  const auto lines = sorted_lines(program.output());
  ASSERT_EQ(lines.size(), 24U);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "<22>"), 5);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "end"), 4);
}

TEST(Run, GivesStandardInputToRankZeroAlone) {
  Program program(run_words(3, "wc -c"), kNoLauncher, "12345");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(sorted_lines(program.output()), (std::vector<std::string>{"0", "0", "5"}));
}

TEST(Run, EndsWhenItsReaderGoes) {
  const std::string command = ESPALIER_TEST_BIN "/espalier run -n 2 -- yes | head -1";
  Program program({"/bin/sh", "-c", command}, kNoLauncher);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "y\n");
}

TEST(Run, RefusesWhatCannotBeStarted) {
  const std::string espalier = ESPALIER_TEST_BIN "/espalier";
  const struct {
    std::vector<std::string> words;
    const char* mention;
  } table[] = {
      {{espalier, "run", "-n", "2", "--", "./no-such-program"}, "'./no-such-program' cannot be started: No such file"},
      {{espalier, "run", "-n", "2", "--", "/etc/passwd"}, "'/etc/passwd' cannot be started: Permission denied"},
      {{espalier, "run", "-n", "0", "--", "true"}, "0 ranks; at least 1"},
      {{espalier, "run", "-n", "-3", "--", "true"}, "-3 ranks; at least 1"},
      {{espalier, "run", "-n", "two", "--", "true"}, "two"},
      {{espalier, "run", "-n", "2"}, "program is required"},
      {{espalier, "run", "--", "true"}, "give -n N, or --hostfile FILE"},
  };
  for (const auto& row : table) {
    Program program(row.words, kNoLauncher);
    EXPECT_EQ(program.wait(), 2) << row.mention;
    EXPECT_THAT(program.error(), HasSubstr(row.mention));
    EXPECT_EQ(sorted_lines(program.error()).size(), 1U) << program.error();
  }
}

TEST(Run, RefusesToStartWorldsInsideAWorld) {
  Program program(
      run_words(2, "true"),
      {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(program.wait(), 2);
  EXPECT_THAT(program.error(), HasSubstr("already rank 1 of 4 under torchrun (RANK=1)"));
}

}  // namespace
}  // namespace espalier
