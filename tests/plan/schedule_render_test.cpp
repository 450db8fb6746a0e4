// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/render.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "espalier/base/error.hpp"
#include "espalier/plan/schedule/schedules.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;

TEST(Render, DrawsOneRowAStageWithTimeToTheRight) {
  const Timeline drawn = timeline(simulate(one_f_one_b().generate(3, 3), {}));
  EXPECT_EQ(render_text(drawn),
            "stage 0  F0 F1 F2 .  .  .  .  B0--- .  B1--- .  B2---\n"
            "stage 1  .  F0 F1 .  .  B0--- F2 B1--- .  B2--- .  .\n"
            "stage 2  .  .  F0 B0--- F1 B1--- F2 B2--- .  .  .  .\n");
}

TEST(Render, ContinuesInPanelsThatShowEverythingOnceAndKeepTheWidth) {
  const Timeline drawn = timeline(simulate(gpipe().generate(4, 12), {.transfer = 0.3}));
  const std::string whole = render_text(drawn, {.width = 100'000});
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 4);
  const std::string panels = render_text(drawn, {.width = 60});
  std::istringstream lines(panels);
  std::string line, rows[4];
  while (std::getline(lines, line)) {
    EXPECT_LE(line.size(), 60u);
    if (line.starts_with("stage ")) {
      std::string& row = rows[line[6] - '0'];
      line.resize(57, ' ');  // margin 9, and 12 cells of 4
      row += line.substr(row.empty() ? 0 : 9);
    }
  }
  std::istringstream wholes(whole);
  for (const std::string& row : rows) {
    std::getline(wholes, line);
    EXPECT_EQ(row.substr(0, row.find_last_not_of(' ') + 1), line);
  }
  EXPECT_THAT(panels, HasSubstr("\nfrom time 12\n"));
}

TEST(Render, ColoursOnlyWhereAsked) {
  const Timeline drawn = timeline(simulate(one_f_one_b().generate(2, 2), {}));
  EXPECT_EQ(render_text(drawn).find('\033'), std::string::npos);
  const std::string colored = render_text(drawn, {.color = true});
  std::string plain = std::regex_replace(colored, std::regex("\033\\[[0-9;]*m"), "");
  plain = std::regex_replace(plain, std::regex(" +\n"), "\n");
  EXPECT_EQ(plain, render_text(drawn));
}

TEST(Render, RefusesAWidthThatHoldsNoCell) {
  const Timeline drawn = timeline(simulate(one_f_one_b().generate(2, 2), {}));
  try {
    render_text(drawn, {.width = 11});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "schedule picture: 11 columns are too few; it needs at least 12");
  }
  EXPECT_NO_THROW(render_text(drawn, {.width = 12}));
}

TEST(Render, SurvivesWorkThatTakesNoTime) {
  const Timeline drawn = timeline(simulate(gpipe().generate(2, 2), {.forward = 0, .backward = 0}));
  EXPECT_THAT(render_text(drawn), HasSubstr("stage 1"));
  EXPECT_THAT(render_svg(drawn, "nothing"), HasSubstr("time 0, bubble 0.0 %"));
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Render, SvgShowsEveryForwardAndBackwardAndNeedsNothingFromOutside) {
  const std::string svg = render_svg(timeline(simulate(one_f_one_b().generate(4, 8), {})), "1f1b & <4> stages");
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_EQ(count(svg, "forward of micro-batch"), 32);
  EXPECT_EQ(count(svg, "backward of micro-batch"), 32);
  EXPECT_THAT(svg, HasSubstr("<title>1f1b &amp; &lt;4&gt; stages</title>"));
  EXPECT_THAT(svg, HasSubstr("time 33, bubble 27.3 %"));
  for (const char* outside : {"href", "url(", "<script", "<style", "@import"})
    EXPECT_EQ(count(svg, outside), 0) << outside;
  EXPECT_EQ(count(svg, "http"), 1);  // the namespace
  for (const char* element : {"svg", "text", "title"})
    EXPECT_EQ(count(svg, std::string("<") + element + ">") + count(svg, std::string("<") + element + " "),
              count(svg, std::string("</") + element + ">"));
}

}  // namespace
}  // namespace espalier
