// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/log.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace espalier {
namespace {

TEST(Log, PutsItsPrefixBeforeEachLineAndNamesTroubles) {
  std::vector<std::string> lines;
  const Log log([&](LogLevel, std::string_view line) { lines.emplace_back(line); }, "[rank 3] ");
  log.info("hello");
  log.warning("slow disk");
  EXPECT_EQ(lines, (std::vector<std::string>{"[rank 3] hello", "[rank 3] warning: slow disk"}));
}

TEST(Log, WithoutASinkIsSilent) { Log(nullptr, "").error("nobody hears this"); }

}  // namespace
}  // namespace espalier
