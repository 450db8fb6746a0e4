// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/html_text.hpp"

#include <algorithm>

namespace espalier::command {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The length of the UTF-8 character that `bytes` begin with; 0 when there is none (RFC 3629: no
// overlong forms, no surrogates, nothing beyond U+10FFFF).
std::size_t utf8_length(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xC2 ? 0
                             : first < 0xE0 ? 2
                             : first < 0xF0 ? 3
                             : first < 0xF5 ? 4
                                            : 0;
  if (length == 0 || bytes.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (length < 3) return length;
  const unsigned char second = byte(1);
  const bool legal = !(first == 0xE0 && second < 0xA0) && !(first == 0xED && second > 0x9F) &&
                     !(first == 0xF0 && second < 0x90) && !(first == 0xF4 && second > 0x8F);
  return legal ? length : 0;
}

}  // namespace

std::string readable(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const auto first = static_cast<unsigned char>(bytes[0]);
    const std::size_t length = utf8_length(bytes);
    const bool control = (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F;
    text += length == 0 || control ? kReplacement : bytes.substr(0, length);
    bytes.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return text;
}

std::string escape_html(std::string_view bytes) {
  std::string escaped;
  for (const char c : readable(bytes)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (auto i = static_cast<std::int64_t>(digits.size()) - 3; i > (value < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<std::size_t>(i), "\u202f");
  }
  return digits;
}

}  // namespace espalier::command
