// SPDX-License-Identifier: Apache-2.0
// Private: the small key-value store through which the ranks of a world find each other before they can talk.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace espalier::detail {

// Shared by all ranks of one world (of nobody else: an implementation prefixes its keys). Thread-safe.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  // Blocks until `key` is set. CommError naming the key at the deadline.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;
};

}  // namespace espalier::detail
