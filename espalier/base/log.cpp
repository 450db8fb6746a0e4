// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/log.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace espalier {

std::string_view to_string(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
  }
  return "unknown";
}

LogSink stderr_sink(LogLevel threshold) {
  return [threshold](LogLevel level, std::string_view line) {
    if (level < threshold) return;
    const std::string whole = fmt::format("{}\n", line);  // one write a line, so ranks do not interleave
    std::fwrite(whole.data(), 1, whole.size(), stderr);
  };
}

Log::Log(LogSink sink, std::string prefix) : sink_(std::move(sink)), prefix_(std::move(prefix)) {}

void Log::write(LogLevel level, std::string_view text) const {
  if (!sink_) return;
  const bool named = level >= LogLevel::warning;
  sink_(level, fmt::format("{}{}{}{}", prefix_, named ? to_string(level) : "", named ? ": " : "", text));
}

}  // namespace espalier
