// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string_view>

#include "espalier/base/error.hpp"

namespace espalier::command {

inline constexpr int kRequestIsWrong = 2, kCommunicationFailed = 3, kDefect = 4, kDiverged = 5;

// Runs a program's body and returns its exit code. What it throws becomes one line on standard error and the code of
// its kind. All ranks find the same thing wrong with a request: `speaks_for_all` says whether this one is to print it.
inline int with_exit_codes(
    const std::function<int()>& body, const std::function<bool()>& speaks_for_all = [] { return true; }) {
  const auto complain = [](std::string_view text, int code) {
    fmt::print(stderr, "espalier: {}\n", text);
    return code;
  };
  try {
    return body();
  } catch (const ConfigError& error) {
    return speaks_for_all() ? complain(error.what(), kRequestIsWrong) : kRequestIsWrong;
  } catch (const CommError& error) {
    return complain(error.what(), kCommunicationFailed);
  } catch (const std::exception& error) {
    return complain(error.what(), kDefect);
  }
}

}  // namespace espalier::command
