// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier::command {

// Any bytes as UTF-8 text: what is not UTF-8 and control characters but tab and newline become U+FFFD.
std::string readable(std::string_view bytes);

// The same as HTML or XML text (also inside quoted attributes): markup characters escaped.
std::string escape_html(std::string_view bytes);

// "12 345 678", with narrow no-break spaces.
std::string grouped(std::int64_t value);

}  // namespace espalier::command
