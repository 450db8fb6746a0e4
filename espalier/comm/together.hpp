// SPDX-License-Identifier: Apache-2.0
// Private.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "espalier/base/error.hpp"
#include "espalier/comm/agreement.hpp"

namespace espalier::detail {

// Runs `action` on this rank and returns what it gave once it has succeeded on all: a ConfigError or a file system's
// error of any member becomes everybody's ConfigError. All members must call; blocks.
template <class Action>
auto together(const Group& group, const Action& action) {
  using Result = std::invoke_result_t<const Action&>;
  std::optional<std::conditional_t<std::is_void_v<Result>, bool, Result>> result;
  std::optional<std::string> error;
  try {
    if constexpr (std::is_void_v<Result>) {
      action();
    } else {
      result.emplace(action());
    }
  } catch (const ConfigError& trouble) {
    error = trouble.what();
  } catch (const std::filesystem::filesystem_error& trouble) {
    error = fmt::format("{}: {}", trouble.path1().string(), trouble.code().message());
  }
  agree_no_error(group, error);
  if constexpr (!std::is_void_v<Result>) return std::move(*result);
}

}  // namespace espalier::detail
