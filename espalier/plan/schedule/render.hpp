// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "espalier/plan/schedule/timeline.hpp"

namespace espalier {

struct TextPicture {
  std::int64_t width = 100;  // columns; what does not fit continues in a further panel below
  bool color = false;        // ANSI colours
};

// A timeline for a terminal: one row a stage or rank, time to the right, "F3" and "B3--" for the forward and the backward of
// micro-batch 3 ('-' lasts on), '.' idle. Lines end with '\n'. ConfigError if the width is too small.
std::string render_text(const Timeline& timeline, const TextPicture& picture = {});

// The same as an SVG element that needs nothing from outside and can stand in a file of its own or in an HTML page.
std::string render_svg(const Timeline& timeline, std::string_view title);

}  // namespace espalier
