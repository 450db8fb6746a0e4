// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "apps/espalier_train/html_text.hpp"
#include "apps/espalier_train/line_chart.hpp"

namespace espalier::command {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Report full_report() {
  Report report{.title = "GPT <small> & tied", .made_with = "espalier 0.1.0", .total_seconds = 75.0};
  for (std::int64_t step = 0; step < 400; ++step) {
    const auto t = static_cast<double>(step);
    report.metrics.push_back({step, 2.4 + 3.1 * std::exp(-t / 60), 1.0 + 0.1 * std::sin(t), 3e-3 * (1 - t / 400),
                              20'000 + 10 * t, step < 100 ? 3200 : 110, 3200, step < 100 ? 0.25 : 0.03125});
  }
  report.axes = {{"pipe", 2}, {"data", 3}};
  report.stages = {{"wte, block 0", 226'048}, {"block 1, norm", 616'448}};
  for (std::int64_t rank = 0; rank < 6; ++rank) report.places.push_back({rank, rank / 3, rank % 3});
  report.schedule_name = "1f1b";
  report.schedule_svg =
      "<?xml version=\"1.0\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"10\" "
      "height=\"10\"><rect/></svg>";
  report.settings = {{"batch", "16"}, {"text", "a<b>\"c\".txt"}};
  report.prompt = "The ";
  report.sample = "cat & <script>dog</script>\n\xff\x01 \xe2\x82\xac";
  return report;
}

// What is wrong with the tags of a page, as an XML reader would see it; empty when nothing is.
std::string complaint(const std::string& html) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < html.size();) {
    if (html[at] == '&') {
      const std::size_t end = html.find(';', at);
      if (end == std::string::npos || end - at > 9) return "bare & at " + html.substr(at, 20);
    }
    if (html[at] != '<') {
      ++at;
      continue;
    }
    const std::size_t end = html.find('>', at);
    if (end == std::string::npos) return "unclosed tag";
    const std::string tag = html.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.find('<') != std::string::npos || std::ranges::count(tag, '"') % 2 != 0) return "malformed <" + tag + ">";
    if (tag[0] == '!' || tag.back() == '/') continue;
    if (tag[0] != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else if (open.empty() || open.back() != tag.substr(1)) {
      return "<" + tag + "> closes " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

TEST(Report, IsWellFormedWhateverIsMissing) {
  EXPECT_EQ(complaint(render_report(full_report())), "");
  EXPECT_EQ(complaint(render_report({})), "");
  Report one = full_report();
  one.metrics.resize(1);
  one.schedule_svg = "";
  EXPECT_EQ(complaint(render_report(one)), "");
  EXPECT_NE(complaint("<p><b></p>"), "");
}

TEST(Report, NeedsNothingFromElsewhere) {
  const std::string html = render_report(full_report());
  for (const std::string outside : {"http:", "https:", "//www", "url(", "@import", "<script", "<link", "src="})
    EXPECT_THAT(html, Not(HasSubstr(outside)));
}

TEST(Report, ShowsTheNumbers) {
  const std::string html = render_report(full_report());
  double tail = 0;
  for (const MetricsRow& row : full_report().metrics) tail += row.step >= 380 ? row.loss / 20 : 0;
  char loss[16];
  std::snprintf(loss, sizeof loss, "%.3f", tail);
  EXPECT_THAT(html, HasSubstr("<dd>" + std::string(loss) + " <small>from 5.500"));
  EXPECT_THAT(html, HasSubstr("<dd>22\u202f000 <small>median"));
  EXPECT_THAT(html, HasSubstr("<dd>400 <small>in 1 min 15 s"));
  EXPECT_THAT(html, HasSubstr("pipe=2, data=3"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">stage 1</th><td>3</td><td>4</td><td>5</td>"));
  EXPECT_THAT(html, HasSubstr("616\u202f448"));
  EXPECT_THAT(html, HasSubstr("Schedule: 1f1b"));
  EXPECT_THAT(html, HasSubstr("<svg width=\"10\" height=\"10\"><rect/></svg>"));
  EXPECT_THAT(html, HasSubstr("<dt>batch</dt><dd>16</dd>"));
}

TEST(Report, ShowsWhatAveragingCostBeforeAndAfterTheFreeze) {
  const auto row = [](const std::string& name, const std::vector<std::string>& numbers) {
    std::string html = "<th scope=\"row\">" + name + "</th>";
    for (const std::string& number : numbers) html += "<td class=\"number\">" + number + "</td>";
    return html;
  };
  Report report = full_report();
  report.metrics[7].averaging_bytes = 0;  // a skipped step
  const std::string html = render_report(report);
  EXPECT_THAT(html, HasSubstr(row("from step 0", {"99", "316\u202f800", "316\u202f800", "1.0", "25.0 %"})));
  EXPECT_THAT(html, HasSubstr(row("from step 7", {"1", "0", "3\u202f200", "none", "25.0 %"})));
  EXPECT_THAT(html, HasSubstr(row("from step 100", {"300", "33\u202f000", "960\u202f000", "29.1", "3.1 %"})));
  EXPECT_THAT(html, HasSubstr(row("all", {"400", "349\u202f800", "1\u202f280\u202f000", "3.7", "3.1 %"})));
  for (MetricsRow& step : report.metrics) step.averaging_bytes = step.averaging_fp32_bytes = 0;
  EXPECT_THAT(render_report(report), Not(HasSubstr("Averaging over data")));
}

TEST(Report, ShowsValidationAndSkippedStepsWhereThereAreAny) {
  Report report = full_report();
  EXPECT_THAT(render_report(report), Not(HasSubstr("alidation loss <")));
  EXPECT_THAT(render_report(report), Not(HasSubstr("class=\"validation\"")));
  report.metrics[99].val_loss = 3.25;
  report.metrics[199].val_loss = 2.5;
  report.metrics[299].val_loss = 2.75;
  for (const std::size_t step : {10, 20, 30}) report.metrics[step].skipped = true;
  const std::string html = render_report(report);
  EXPECT_EQ(complaint(html), "");
  EXPECT_THAT(html, HasSubstr("<dt>Validation loss</dt><dd>2.750 <small>perplexity 15.64, best 2.500 after step 200"));
  EXPECT_THAT(html, HasSubstr("<dd>400 <small>in 1 min 15 s, 3 skipped"));
  EXPECT_THAT(html, HasSubstr("<span class=\"validation\">validation</span>"));
  EXPECT_THAT(html, HasSubstr("<path class=\"curve validation\" d=\"M"));
}

TEST(Report, PutsSeveralRanksOfOnePlaceTogether) {
  Report report = full_report();
  report.places = {{0, 0, 0}, {1, 0, 0}, {2, 0, 1}, {3, 0, 1}};
  EXPECT_THAT(render_report(report), HasSubstr("<td>0, 1</td><td>2, 3</td>"));
}

TEST(Report, EscapesTextsOfOthers) {
  const std::string html = render_report(full_report());
  EXPECT_THAT(html, HasSubstr("<pre><b>The </b>cat &amp; "
                              "&lt;script&gt;dog&lt;/script&gt;\n\xef\xbf\xbd\xef\xbf\xbd \xe2\x82\xac</pre>"));
  EXPECT_THAT(html, HasSubstr("GPT &lt;small&gt; &amp; tied"));
  EXPECT_THAT(html, HasSubstr("a&lt;b&gt;&quot;c&quot;.txt"));
}

TEST(Report, DrawsGapsWhereALossIsNotFinite) {
  Report report = full_report();
  report.metrics[100].loss = std::nan("");
  report.metrics[200].loss = std::numeric_limits<double>::infinity();
  const std::string html = render_report(report);
  EXPECT_EQ(complaint(html), "");
  EXPECT_THAT(html, Not(HasSubstr("Lnan")));
  EXPECT_THAT(html, Not(HasSubstr(" inf")));
}

TEST(EscapeHtml, KeepsUtf8AndReplacesTheRest) {
  EXPECT_EQ(escape_html("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xb3\t\n"), "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xb3\t\n");
  for (const std::string bad :
       {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80", "\x80"}) {
    std::string expected;
    for (std::size_t i = 0; i < bad.size(); ++i) expected += "\xef\xbf\xbd";
    EXPECT_EQ(escape_html(bad), expected);
  }
  EXPECT_EQ(escape_html(std::string(1, '\0')), "\xef\xbf\xbd");
}

TEST(Grouped, PutsSpacesBetweenThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1234567), "1\u202f234\u202f567");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(grouped(-1234), "-1\u202f234");
}

TEST(LineChart, HasRoundTicksWithinItsRange) {
  EXPECT_THAT(ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(2.3, 5.6, 4), ElementsAre(3, 4, 5));
  EXPECT_EQ(ticks(0, 3e-3, 3).size(), 4U);
}

TEST(LineChart, KeepsASpikeAmongManyPoints) {
  LineChart chart{.title = "spike", .x_label = "step", .x = {}, .curves = {{"y", "raw", {}}}};
  for (int i = 0; i < 100'000; ++i) {
    chart.x.push_back(i);
    chart.curves[0].y.push_back(i == 54'321 ? 7.0 : 1.0);
  }
  const std::string svg = line_chart_svg(chart);
  EXPECT_LT(svg.size(), 60'000U);
  chart.curves[0].y[54'321] = 1.0;
  EXPECT_NE(line_chart_svg(chart), svg);
}

TEST(LineChart, DrawsAConstantAndASinglePoint) {
  for (const double value : {0.0, 5.0, -3.0}) {
    const std::string svg =
        line_chart_svg({.title = "flat", .x_label = "step", .x = {3}, .curves = {{"y", "raw", {value}}}});
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, HasSubstr("d=\"M"));
  }
}

}  // namespace
}  // namespace espalier::command
