// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <system_error>
#include <vector>

namespace espalier::testing_support {

// What this process holds: the targets of its descriptors and its mappings of a world's shared memory. (The memory has
// no name, so it ends with the last mapping.)
inline std::multiset<std::string> own_resources() {
  std::multiset<std::string> held;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor of this very loop
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.find("/proc/") != 0) held.insert(target);
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:espalier") != std::string::npos) held.insert("mapping of memfd:espalier");
  }
  return held;
}

// Held now and not before, separated by semicolons.
inline std::string newly_held(const std::multiset<std::string>& before) {
  const std::multiset<std::string> now = own_resources();
  std::vector<std::string> more;
  std::ranges::set_difference(now, before, std::back_inserter(more));
  std::string text;
  for (const std::string& one : more) text += (text.empty() ? "" : "; ") + one;
  return text;
}

}  // namespace espalier::testing_support
