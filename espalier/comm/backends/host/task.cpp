// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/host/task.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace espalier::detail::host {

std::string Space::describe() const {
  constexpr std::size_t kShown = 16;
  const auto count = std::min(shown.size(), kShown);
  return fmt::format("group '{}' [{}{}]", name, fmt::join(shown.begin(), shown.begin() + static_cast<long>(count), ","),
                     shown.size() > kShown ? ",..." : "");
}

std::string Task::describe() const {
  std::string text = to_string(call);
  if (point_to_point()) {
    text += fmt::format(" {} rank {}, tag {},", call.kind == CallKind::send ? "to" : "from",
                        space.shown[static_cast<std::size_t>(peer)], tag);
  }
  return fmt::format("{} #{} of {}", text, sequence, space.describe());
}

Descriptor Task::descriptor() const {
  Descriptor descriptor;
  descriptor.context = space.context;
  descriptor.sequence = sequence;
  descriptor.tag = tag;
  descriptor.call = call;
  return descriptor;
}

}  // namespace espalier::detail::host
