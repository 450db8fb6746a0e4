// SPDX-License-Identifier: Apache-2.0
// Private to the library's sources: throwing with a formatted text.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "espalier/base/error.hpp"

// ESPALIER_CHECK_CONFIG(condition, format, args...): ConfigError unless the condition holds.
#define ESPALIER_CHECK_CONFIG(condition, ...)                  \
  do {                                                         \
    if (!(condition)) [[unlikely]]                             \
      throw ::espalier::ConfigError(fmt::format(__VA_ARGS__)); \
  } while (false)

// ESPALIER_CHECK(condition, format, args...): InternalError with file and line unless the condition holds.
#define ESPALIER_CHECK(condition, ...)                                                                            \
  do {                                                                                                            \
    if (!(condition)) [[unlikely]]                                                                                \
      throw ::espalier::InternalError(                                                                            \
          fmt::format("{}:{}: {} (this is a defect in Espalier)", __FILE__, __LINE__, fmt::format(__VA_ARGS__))); \
  } while (false)
