// SPDX-License-Identifier: Apache-2.0
// Private.
#pragma once

#include <string>

namespace espalier {

// The whole content of a file. Throws ConfigError "PATH: cannot read the file: the system's reason".
std::string read_file(const std::string& path);

// The same; 0, or the system's error number where it cannot be read. For files that may vanish while
// they are read, as /proc's of another process do.
int read_file(const std::string& path, std::string& content);

}  // namespace espalier
