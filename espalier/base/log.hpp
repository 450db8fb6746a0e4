// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace espalier {

enum class LogLevel { debug, info, warning, error };

// "debug", "info", "warning", "error".
std::string_view to_string(LogLevel level);

// Receives finished lines (no newline at the end). Called on the thread that logs.
using LogSink = std::function<void(LogLevel, std::string_view line)>;

// Writes whole lines to standard error, from `threshold` on.
LogSink stderr_sink(LogLevel threshold = LogLevel::info);

// Logs for one rank: each line starts with "[rank r] ". A cheap copy; belongs to a World, never global.
class Log {
 public:
  explicit Log(LogSink sink = stderr_sink(), std::string prefix = "");

  void debug(std::string_view text) const { write(LogLevel::debug, text); }
  void info(std::string_view text) const { write(LogLevel::info, text); }
  void warning(std::string_view text) const { write(LogLevel::warning, text); }
  void error(std::string_view text) const { write(LogLevel::error, text); }

 private:
  void write(LogLevel level, std::string_view text) const;

  LogSink sink_;
  std::string prefix_;
};

}  // namespace espalier
