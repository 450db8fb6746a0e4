// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/line_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/espalier_train/html_text.hpp"

namespace espalier::command {
namespace {

constexpr double kLeft = 52, kRight = 14, kTop = 12, kBottom = 40;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Never empty, never of width zero.
  Range widened() const {
    if (!(low <= high)) return {0.0, 1.0};
    if (low == high) return {low - 0.5 * std::max(std::abs(low), 1e-9), high + 0.5 * std::max(std::abs(high), 1e-9)};
    return *this;
  }
};

class Plot {
 public:
  Plot(const LineChart& chart) : chart_(chart) {
    for (const double x : chart.x) x_.include(x);
    for (const Curve& curve : chart.curves) {
      for (const double x : curve.x) x_.include(x);
      for (const double y : curve.y) y_.include(y);
    }
    x_ = x_.widened();
    y_ = y_.widened();
    const double margin = 0.05 * (y_.high - y_.low);
    const bool positive = y_.low >= 0.0;
    y_ = {positive ? std::max(0.0, y_.low - margin) : y_.low - margin, y_.high + margin};
  }

  double right() const { return chart_.width - kRight; }
  double bottom() const { return chart_.height - kBottom; }
  const Range& x() const { return x_; }
  const Range& y() const { return y_; }
  double at_x(double x) const { return kLeft + (x - x_.low) / (x_.high - x_.low) * (right() - kLeft); }
  double at_y(double y) const { return bottom() - (y - y_.low) / (y_.high - y_.low) * (bottom() - kTop); }

 private:
  const LineChart& chart_;
  Range x_, y_;
};

// "12k", "0.003", "1e-05"
std::string tick_text(double value) {
  if (std::abs(value) >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (std::abs(value) >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", std::abs(value) < 1e-12 ? 0.0 : value);
}

// The points of a curve that can be told apart: per pixel column its first, lowest, highest and
// last.
std::string path(const Plot& plot, const std::vector<double>& x, const std::vector<double>& y) {
  std::string text;
  bool down = false;
  const auto draw = [&](std::size_t i) {
    text += fmt::format("{}{:.1f} {:.1f}", down ? "L" : "M", plot.at_x(x[i]), plot.at_y(y[i]));
    down = true;
  };
  const std::size_t size = std::min(x.size(), y.size());
  for (std::size_t begin = 0; begin < size;) {
    if (!std::isfinite(y[begin])) {
      down = false;
      ++begin;
      continue;
    }
    const double column = std::floor(plot.at_x(x[begin]));
    std::size_t end = begin;
    while (end < size && std::isfinite(y[end]) && std::floor(plot.at_x(x[end])) == column) ++end;
    std::vector<std::size_t> points{begin, end - 1};
    const auto [lowest, highest] = std::minmax_element(y.begin() + static_cast<std::ptrdiff_t>(begin),
                                                       y.begin() + static_cast<std::ptrdiff_t>(end));
    points.push_back(static_cast<std::size_t>(lowest - y.begin()));
    points.push_back(static_cast<std::size_t>(highest - y.begin()));
    std::ranges::sort(points);
    points.erase(std::unique(points.begin(), points.end()), points.end());
    for (const std::size_t i : points) draw(i);
    begin = end;
  }
  return text;
}

}  // namespace

std::vector<double> ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double step = power * (rough / power <= 1.0 ? 1 : rough / power <= 2.0 ? 2 : rough / power <= 5.0 ? 5 : 10);
  std::vector<double> values;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1.0) values.push_back(k * step);
  return values;
}

std::string line_chart_svg(const LineChart& chart) {
  const Plot plot(chart);
  std::string svg = fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                                chart.width, chart.height, escape_html(chart.title));
  for (const double y : ticks(plot.y().low, plot.y().high, chart.height / 48)) {
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", kLeft, plot.at_y(y), plot.right());
    svg += fmt::format("<text class=\"tick end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", kLeft - 8, plot.at_y(y) + 4,
                       tick_text(y));
  }
  for (const double x : ticks(plot.x().low, plot.x().high, chart.width / 70)) {
    svg += fmt::format("<text class=\"tick middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", plot.at_x(x),
                       plot.bottom() + 17, tick_text(x));
  }
  svg += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", kLeft, plot.bottom(), plot.right());
  svg += fmt::format("<text class=\"label middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n", (kLeft + plot.right()) / 2,
                     chart.height - 6, escape_html(chart.x_label));
  for (const Curve& curve : chart.curves) {
    svg += fmt::format("<path class=\"curve {}\" d=\"{}\"/>\n", curve.style,
                       path(plot, curve.x.empty() ? chart.x : curve.x, curve.y));
  }
  return svg + "</svg>\n";
}

}  // namespace espalier::command
