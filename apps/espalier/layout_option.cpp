// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier/layout_option.hpp"

#include <string_view>
#include <utility>

#include "espalier/base/check.hpp"

namespace espalier::command {
namespace {

std::int64_t product(const LayoutSpec& spec) {
  std::int64_t result = 1;
  for (const auto& [name, size] :
       {std::pair{"pipe", spec.pipe}, {"data", spec.data}, {"context", spec.context}, {"tensor", spec.tensor}}) {
    if (size == kRest)
      throw ConfigError(fmt::format("layout: {}=rest depends on the number of ranks; add --world N", name));
    if (__builtin_mul_overflow(result, size, &result))
      throw ConfigError("layout: the sizes multiply to more than 2^63 ranks; choose smaller ones");
  }
  return result;
}

}  // namespace

Layout make_layout(const std::string& text, std::optional<std::int64_t> world_size) {
  const LayoutSpec spec = Layout::parse(text);
  return Layout(spec, world_size ? *world_size : product(spec));
}

std::string origin_note(const Layout& layout, std::string_view axis) {
  const std::string_view origin = layout.origin(axis);
  return origin == "given" ? "" : fmt::format(" ({})", origin);
}

void check_rank(std::string_view command, std::int64_t rank, std::int64_t world_size) {
  ESPALIER_CHECK_CONFIG(rank >= 0 && rank < world_size, "{}: there is no rank {}; the {} ranks are 0 to {}", command,
                        rank, world_size, world_size - 1);
}

}  // namespace espalier::command
