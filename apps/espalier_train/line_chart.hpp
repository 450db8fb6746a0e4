// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace espalier::command {

struct Curve {
  std::string name;   // for the legend
  std::string style;  // CSS class of the path
  std::vector<double> y;
  std::vector<double> x = {};  // its own; empty: the chart's
};

struct LineChart {
  std::string title;  // read out in place of the picture
  std::string x_label;
  std::vector<double> x;  // ascending; of all curves without one of their own
  std::vector<Curve> curves;
  int width = 720;
  int height = 280;
};

// An <svg> element with axes, grid and curves, styled by the page's CSS (classes grid, tick, label
// and each curve's own). Values that are not finite leave gaps. Long curves are thinned to the
// lowest and highest value of each pixel column, so no spike is lost.
std::string line_chart_svg(const LineChart& chart);

// Round numbers (1, 2 or 5 times a power of ten apart), about `count` of them, within [low, high].
std::vector<double> ticks(double low, double high, int count);

}  // namespace espalier::command
