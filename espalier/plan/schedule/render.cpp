// SPDX-License-Identifier: Apache-2.0
// Both pictures scale time so that the shortest interval still holds its label.
#include "espalier/plan/schedule/render.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

using Bar = Timeline::Bar;
using Look = Timeline::Look;

// The shortest interval that lasts at all; 1 if there is none.
double shortest(const Timeline& timeline) {
  double duration = std::numeric_limits<double>::infinity();
  for (const auto& row : timeline.rows)
    for (const Bar& bar : row)
      if (bar.end > bar.begin) duration = std::min(duration, bar.end - bar.begin);
  return std::isfinite(duration) ? duration : 1.0;
}

// ---- text ----

struct Row {
  std::string text;
  std::vector<std::optional<Look>> looks;  // one a character; nothing: idle
};

Row draw_row(const std::vector<Bar>& bars, std::int64_t columns, std::int64_t cell, double columns_per_time) {
  Row row{.text = std::string(columns, ' '), .looks = std::vector<std::optional<Look>>(columns)};
  for (std::int64_t column = 0; column < columns; column += cell) row.text[column] = '.';
  for (const Bar& bar : bars) {
    const std::int64_t begin = std::lround(bar.begin * columns_per_time);
    const std::int64_t end = std::min<std::int64_t>(columns, std::lround(bar.end * columns_per_time));
    const std::string& name = bar.label;
    for (std::int64_t column = begin; column < end; ++column) {
      const bool gap = column == end - 1;  // between neighbours
      const auto k = static_cast<std::size_t>(column - begin);
      row.text[column] = gap ? ' ' : k < name.size() ? name[k] : '-';
      if (!gap) row.looks[column] = bar.look;
    }
  }
  return row;
}

std::string_view color_code(std::optional<Look> look) {
  if (!look) return "\033[0;2m";
  switch (*look) {
    case Look::forward:
      return "\033[0;30;46m";
    case Look::backward:
    case Look::backward_input:
      return "\033[0;30;42m";
    case Look::backward_weight:
      return "\033[0;30;43m";
  }
  return "";
}

std::string cut(const Row& row, std::int64_t begin, std::int64_t end, bool color) {
  if (!color) {
    std::string text = row.text.substr(begin, end - begin);
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  }
  std::string text;
  for (std::int64_t column = begin; column < end; ++column) {
    if (column == begin || row.looks[column] != row.looks[column - 1]) text += color_code(row.looks[column]);
    text += row.text[column];
  }
  return text + "\033[0m";
}

// ---- SVG ----

constexpr std::string_view kIdleFill = "#eceff1", kInk = "#263238";

std::string_view fill(Look look) {
  switch (look) {
    case Look::forward:
      return "#8ecae6";
    case Look::backward:
      return "#95d5b2";
    case Look::backward_input:
      return "#74c69d";
    case Look::backward_weight:
      return "#e9d8a6";
  }
  return "";
}

// The looks that are there, with what they stand for.
std::vector<std::pair<Look, std::string_view>> legend(const Timeline& timeline) {
  const auto there = [&](Look look) {
    return std::ranges::any_of(
        timeline.rows, [&](const auto& bars) { return std::ranges::find(bars, look, &Bar::look) != bars.end(); });
  };
  std::vector<std::pair<Look, std::string_view>> all{{Look::forward, "forward"},
                                                     {Look::backward, "backward"},
                                                     {Look::backward_input, "to the input"},
                                                     {Look::backward_weight, "to the weights"}};
  std::erase_if(all, [&](const auto& one) { return !there(one.first); });
  return all;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (char c : text) switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;  // a character, not an enum
    }
  return result;
}

}  // namespace

std::string render_text(const Timeline& timeline, const TextPicture& picture) {
  std::size_t longest = 2;
  for (const auto& bars : timeline.rows)
    for (const Bar& bar : bars) longest = std::max(longest, bar.label.size());
  const auto cell = static_cast<std::int64_t>(longest) + 1;
  const double columns_per_time = static_cast<double>(cell) / shortest(timeline);
  const std::int64_t columns = std::max<std::int64_t>(std::lround(timeline.span * columns_per_time), cell);
  const auto margin =
      static_cast<std::int64_t>(fmt::format("{} {}  ", timeline.row_name, timeline.rows.size() - 1).size());
  ESPALIER_CHECK_CONFIG(picture.width >= margin + cell,
                        "schedule picture: {} columns are too few; it needs at least {}", picture.width, margin + cell);
  const std::int64_t panel = (picture.width - margin) / cell * cell;

  std::vector<Row> rows;
  for (const auto& bars : timeline.rows) rows.push_back(draw_row(bars, columns, cell, columns_per_time));
  std::string text;
  for (std::int64_t begin = 0; begin < columns; begin += panel) {
    if (begin > 0) text += fmt::format("\nfrom time {:g}\n", static_cast<double>(begin) / columns_per_time);
    for (std::size_t s = 0; s < rows.size(); ++s)
      text += fmt::format("{:<{}}{}\n", fmt::format("{} {}", timeline.row_name, s), margin,
                          cut(rows[s], begin, std::min(columns, begin + panel), picture.color));
  }
  return text;
}

std::string render_svg(const Timeline& timeline, std::string_view title) {
  constexpr double kRow = 26, kGap = 4, kMargin = 64, kTop = 34, kBottom = 44;
  const auto num_rows = static_cast<double>(timeline.rows.size());
  // 24 px hold a label; where that would be wider than a page, bars stay at least 3 px and lose
  // theirs.
  const double shortest_px = std::clamp(1600.0 * shortest(timeline) / std::max(timeline.span, 1e-300), 3.0, 24.0);
  const double scale = shortest_px / shortest(timeline);
  const double width = kMargin + timeline.span * scale + 16, height = kTop + num_rows * (kRow + kGap) + kBottom;
  const bool labels = shortest_px >= 20;

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\" role=\"img\">\n<title>{2}</title>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"8\" y=\"20\" font-size=\"14\" fill=\"{3}\">{2}</text>\n",
      width, height, escaped(title), kInk);
  for (std::size_t s = 0; s < timeline.rows.size(); ++s) {
    const double y = kTop + static_cast<double>(s) * (kRow + kGap);
    svg += fmt::format("<text x=\"8\" y=\"{:.1f}\" fill=\"{}\">{} {}</text>\n", y + kRow / 2 + 4, kInk,
                       timeline.row_name, s);
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\"/>\n", kMargin, y,
                       timeline.span * scale, kRow, kIdleFill);
    for (const Bar& bar : timeline.rows[s]) {
      const double x = kMargin + bar.begin * scale, w = (bar.end - bar.begin) * scale;
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" rx=\"2\" fill=\"{}\" "
          "stroke=\"#ffffff\">"
          "<title>{} {}: {}, {:g} to {:g}</title></rect>\n",
          x, y, w, kRow, fill(bar.look), timeline.row_name, s, bar.what, bar.begin, bar.end);
      if (labels)
        svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n", x + w / 2,
                           y + kRow / 2 + 4, kInk, bar.label);
    }
  }
  const double y = kTop + num_rows * (kRow + kGap) + 20;
  const double idle = timeline.span > 0 ? 100 * (1 - timeline.ideal / timeline.span) : 0.0;
  double x = kMargin;
  for (const auto& [look, name] : legend(timeline)) {
    svg += fmt::format(
        "<rect x=\"{0:.0f}\" y=\"{1:.1f}\" width=\"12\" height=\"12\" fill=\"{2}\"/><text x=\"{3:.0f}\" y=\"{4:.1f}\" "
        "fill=\"{5}\">{6}</text>\n",
        x, y - 10, fill(look), x + 16, y, kInk, name);
    x += 22 + 6 * static_cast<double>(name.size());
  }
  svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" fill=\"{}\">time {:g}, bubble {:.1f} %</text>\n</svg>\n", x + 8,
                     y, kInk, timeline.span, idle);
  return svg;
}

}  // namespace espalier
