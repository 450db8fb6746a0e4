// SPDX-License-Identifier: Apache-2.0
#include "espalier/train/fingerprint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/error_of.hpp"

namespace espalier {
namespace {

TEST(Fingerprint, NamesWhatDiffersWithBothValuesAndSparesWhatAResumeMayChange) {
  const Fingerprint saved({{"seed", "1"}, {"batch", "16"}, {"steps", "40", FactScope::ranks}, {"text", "a b"}});
  const Fingerprint now({{"batch", "32"}, {"seed", "1"}, {"steps", "80", FactScope::ranks}, {"clip", "0.5"}});
  std::vector<std::string> differences;
  for (const auto& [name, ours, theirs] : now.differences(saved))
    differences.push_back(name + ": " + ours + ", " + theirs);
  EXPECT_THAT(differences, ::testing::ElementsAre("batch: 32, 16", "clip: 0.5, nothing", "text: nothing, a b"));
  EXPECT_TRUE(now.differences(now).empty());
}

TEST(Fingerprint, RefusesTwoValuesOfOneName) {
  Fingerprint fingerprint;
  fingerprint.add({"seed", "1"});
  fingerprint.add({"seed", "1"});
  EXPECT_EQ(fingerprint.facts().size(), 1u);
  EXPECT_THAT(testing_support::error_of([&] { fingerprint.add({"seed", "2"}); }),
              ::testing::HasSubstr("seed is both '1' and '2'"));
}

TEST(Fingerprint, WritesNumbersSoThatTheyReadBackTheSame) {
  EXPECT_EQ(fact_text(true), "true");
  EXPECT_EQ(fact_text(std::uint64_t{1} << 63), "9223372036854775808");
  EXPECT_EQ(fact_text(0.001), "0.001");
  EXPECT_EQ(fact_text(NAN), "nan");
  const double third = 1.0 / 3.0, next = std::nextafter(third, 1.0);
  EXPECT_EQ(std::stod(fact_text(third)), third);
  EXPECT_NE(fact_text(third), fact_text(next));
}

}  // namespace
}  // namespace espalier
