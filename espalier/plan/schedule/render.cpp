// SPDX-License-Identifier: Apache-2.0
// Both pictures scale time so that the shortest interval still holds its label.
#include "espalier/plan/schedule/render.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

std::string label(const Instruction& i) { return fmt::format("{}{}", code(i.op), i.micro_batch); }

// The shortest interval that lasts at all; 1 if there is none.
double shortest(const Simulation& simulation) {
  double duration = std::numeric_limits<double>::infinity();
  for (const auto& stage : simulation.stages)
    for (const Interval& interval : stage)
      if (interval.end > interval.begin) duration = std::min(duration, interval.end - interval.begin);
  return std::isfinite(duration) ? duration : 1.0;
}

// ---- text ----

enum class Look : std::uint8_t { idle, forward, backward };

struct Row {
  std::string text;
  std::vector<Look> looks;  // one a character
};

Row draw_row(const std::vector<Interval>& stage, std::int64_t columns, std::int64_t cell, double columns_per_time) {
  Row row{.text = std::string(columns, ' '), .looks = std::vector<Look>(columns, Look::idle)};
  for (std::int64_t column = 0; column < columns; column += cell) row.text[column] = '.';
  for (const Interval& interval : stage) {
    const std::int64_t begin = std::lround(interval.begin * columns_per_time);
    const std::int64_t end = std::min<std::int64_t>(columns, std::lround(interval.end * columns_per_time));
    const std::string name = label(interval.instruction);
    for (std::int64_t column = begin; column < end; ++column) {
      const bool gap = column == end - 1;  // between neighbours
      const auto k = static_cast<std::size_t>(column - begin);
      row.text[column] = gap ? ' ' : k < name.size() ? name[k] : '-';
      if (!gap) row.looks[column] = interval.instruction.op == Op::forward ? Look::forward : Look::backward;
    }
  }
  return row;
}

std::string_view color_code(Look look) {
  switch (look) {
    case Look::idle:
      return "\033[0;2m";
    case Look::forward:
      return "\033[0;30;46m";
    case Look::backward:
      return "\033[0;30;42m";
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

constexpr std::string_view kForwardFill = "#8ecae6", kBackwardFill = "#95d5b2", kIdleFill = "#eceff1", kInk = "#263238";

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

std::string render_text(const Simulation& simulation, const TextPicture& picture) {
  std::size_t longest = 2;
  for (const auto& stage : simulation.stages)
    for (const Interval& interval : stage) longest = std::max(longest, label(interval.instruction).size());
  const auto cell = static_cast<std::int64_t>(longest) + 1;
  const double columns_per_time = static_cast<double>(cell) / shortest(simulation);
  const std::int64_t columns = std::max<std::int64_t>(std::lround(simulation.span * columns_per_time), cell);
  const auto margin = static_cast<std::int64_t>(fmt::format("stage {}  ", simulation.stages.size() - 1).size());
  ESPALIER_CHECK_CONFIG(picture.width >= margin + cell,
                        "schedule picture: {} columns are too few; it needs at least {}", picture.width, margin + cell);
  const std::int64_t panel = (picture.width - margin) / cell * cell;

  std::vector<Row> rows;
  for (const auto& stage : simulation.stages) rows.push_back(draw_row(stage, columns, cell, columns_per_time));
  std::string text;
  for (std::int64_t begin = 0; begin < columns; begin += panel) {
    if (begin > 0) text += fmt::format("\nfrom time {:g}\n", static_cast<double>(begin) / columns_per_time);
    for (std::size_t s = 0; s < rows.size(); ++s)
      text += fmt::format("{:<{}}{}\n", fmt::format("stage {}", s), margin,
                          cut(rows[s], begin, std::min(columns, begin + panel), picture.color));
  }
  return text;
}

std::string render_svg(const Simulation& simulation, std::string_view title) {
  constexpr double kRow = 26, kGap = 4, kMargin = 64, kTop = 34, kBottom = 44;
  const auto num_stages = static_cast<double>(simulation.stages.size());
  // 24 px hold a label; where that would be wider than a page, bars stay at least 3 px and lose
  // theirs.
  const double shortest_px = std::clamp(1600.0 * shortest(simulation) / std::max(simulation.span, 1e-300), 3.0, 24.0);
  const double scale = shortest_px / shortest(simulation);
  const double width = kMargin + simulation.span * scale + 16, height = kTop + num_stages * (kRow + kGap) + kBottom;
  const bool labels = shortest_px >= 20;

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\" role=\"img\">\n<title>{2}</title>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"8\" y=\"20\" font-size=\"14\" fill=\"{3}\">{2}</text>\n",
      width, height, escaped(title), kInk);
  for (std::size_t s = 0; s < simulation.stages.size(); ++s) {
    const double y = kTop + static_cast<double>(s) * (kRow + kGap);
    svg += fmt::format("<text x=\"8\" y=\"{:.1f}\" fill=\"{}\">stage {}</text>\n", y + kRow / 2 + 4, kInk, s);
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\"/>\n", kMargin, y,
                       simulation.span * scale, kRow, kIdleFill);
    for (const Interval& interval : simulation.stages[s]) {
      const double x = kMargin + interval.begin * scale, w = (interval.end - interval.begin) * scale;
      const bool forward = interval.instruction.op == Op::forward;
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" rx=\"2\" fill=\"{}\" "
          "stroke=\"#ffffff\">"
          "<title>stage {}: {} of micro-batch {}, {:g} to {:g}</title></rect>\n",
          x, y, w, kRow, forward ? kForwardFill : kBackwardFill, s, forward ? "forward" : "backward",
          interval.instruction.micro_batch, interval.begin, interval.end);
      if (labels)
        svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n", x + w / 2,
                           y + kRow / 2 + 4, kInk, label(interval.instruction));
    }
  }
  const double y = kTop + num_stages * (kRow + kGap) + 20;
  const double idle = simulation.span > 0 ? 100 * (1 - simulation.ideal / simulation.span) : 0.0;
  svg += fmt::format(
      "<rect x=\"{0:.0f}\" y=\"{1:.1f}\" width=\"12\" height=\"12\" fill=\"{2}\"/><text "
      "x=\"{3:.0f}\" y=\"{4:.1f}\" "
      "fill=\"{8}\">forward</text>\n<rect x=\"{5:.0f}\" y=\"{1:.1f}\" width=\"12\" height=\"12\" "
      "fill=\"{6}\"/>"
      "<text x=\"{7:.0f}\" y=\"{4:.1f}\" fill=\"{8}\">backward</text>\n",
      kMargin, y - 10, kForwardFill, kMargin + 16, y, kMargin + 70, kBackwardFill, kMargin + 86, kInk);
  svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" fill=\"{}\">time {:g}, bubble {:.1f} %</text>\n</svg>\n",
                     kMargin + 156, y, kInk, simulation.span, idle);
  return svg;
}

}  // namespace espalier
