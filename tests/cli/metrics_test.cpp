// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/error_of.hpp"
#include "tests/support/small_disk.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier::command {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Metrics : public ::testing::Test {
 protected:
  void write(std::int64_t next_step, const std::vector<MetricsRow>& rows) {
    MetricsWriter writer(path_, next_step);
    for (const MetricsRow& row : rows) writer.append(row);
  }

  testing_support::TemporaryFolder folder_;
  std::string path_ = folder_.file("metrics.csv");
};

MetricsRow row(std::int64_t step) {
  return {
      step,         5.0 / 3.0 + static_cast<double>(step), 0.1, 3e-3 / 7.0, 12345.678901234567, 1LL << 60, 7, 1.0 / 3.0,
      step % 2 == 1};
}

TEST_F(Metrics, ComeBackWithEveryDigit) {
  const std::vector<MetricsRow> rows{row(0),
                                     {1, 1e-320, -0.0, std::nextafter(1.0, 2.0), 1e300, 0, 0, 0, true, 7.0 / 3}};
  write(0, rows);
  EXPECT_EQ(read_metrics(path_), rows);
  EXPECT_THAT(testing_support::read_text(path_),
              ::testing::StartsWith("step,loss,grad_norm,lr,tokens_per_s,averaging_bytes,averaging_fp32_bytes,"
                                    "averaging_share,skipped,val_loss,val_perplexity\n0,1.6666666666666667,0.1,"));
  EXPECT_THAT(testing_support::read_text(path_), HasSubstr(",0,,\n1,"));
  EXPECT_THAT(testing_support::read_text(path_), HasSubstr(",1,2.3333333333333335,10.312258501325767\n"));
}

TEST_F(Metrics, KeepWhatIsNotFinite) {
  write(0, {{0, std::nan(""), std::numeric_limits<double>::infinity(), 0, -std::numeric_limits<double>::infinity(), 0,
             0, 0}});
  const auto rows = read_metrics(path_);
  EXPECT_TRUE(std::isnan(rows.at(0).loss));
  EXPECT_TRUE(std::isinf(rows.at(0).grad_norm));
}

TEST_F(Metrics, OfStepsAfterTheResumedOneAreCut) {
  write(0, {row(0), row(1), row(2), row(3)});
  write(2, {row(2)});
  EXPECT_THAT(read_metrics(path_), ElementsAre(row(0), row(1), row(2)));
  write(3, {row(3)});
  EXPECT_THAT(read_metrics(path_), ElementsAre(row(0), row(1), row(2), row(3)));
  write(0, {row(0)});
  EXPECT_THAT(read_metrics(path_), ElementsAre(row(0)));
}

TEST_F(Metrics, LoseATornLastLineOnly) {
  write(0, {row(0), row(1)});
  const std::string whole = testing_support::read_text(path_);
  testing_support::write_text(path_, whole.substr(0, whole.size() - 3));
  EXPECT_THAT(read_metrics(path_), ElementsAre(row(0)));
  write(5, {row(5)});
  EXPECT_THAT(read_metrics(path_), ElementsAre(row(0), row(5)));
}

TEST_F(Metrics, BeginAnewWhereThereAreNone) {
  write(3, {row(3), row(4)});
  EXPECT_THAT(read_metrics(path_), ElementsAre(row(3), row(4)));
}

TEST_F(Metrics, RefuseOtherFilesWithTheLine) {
  EXPECT_THAT(testing_support::error_of([&] { read_metrics(path_); }),
              AllOf(HasSubstr(path_), HasSubstr("No such file")));
  testing_support::write_text(path_, "a,b\n1,2\n");
  EXPECT_THAT(testing_support::error_of([&] { MetricsWriter(path_, 3); }), HasSubstr("line 1"));
  write(0, {row(0)});
  const std::string good = testing_support::read_text(path_);
  for (const std::string bad :
       {"1,2,3,4,5", "1,2,3,4,5,6,7,8,0", "1,2,3,4,5,6,7,8,0,,,", "x,2,3,4,5,6,7,8,0,,", "1,2,,4,5,6,7,8,0,,",
        "1.5,2,3,4,5,6,7,8,0,,", "1,2,3,4,5,6.5,7,8,0,,", "1,2,3,4,5,6,7,8,2,,", "1,2,3,4,5,6,7,8,0,9,", ""}) {
    testing_support::write_text(path_, good + bad + "\n");
    EXPECT_THAT(testing_support::error_of([&] { read_metrics(path_); }),
                AllOf(HasSubstr(path_), HasSubstr("line 3 is '" + bad + "'")));
    EXPECT_THAT(testing_support::error_of([&] { MetricsWriter(path_, 1); }), HasSubstr("line 3"));
    EXPECT_EQ(testing_support::read_text(path_), good + bad + "\n");
  }
}

TEST_F(Metrics, SayThatTheDiskIsFull) {
  MetricsWriter writer(path_, 0);
  const testing_support::SmallDisk disk(60);
  EXPECT_THAT(testing_support::error_of([&] { writer.append(row(7)); }), AllOf(HasSubstr(path_), HasSubstr("step 7")));
}

}  // namespace
}  // namespace espalier::command
