// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/read_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "espalier/base/check.hpp"

namespace espalier {

int read_file(const std::string& path, std::string& content) {
  content.clear();
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  std::array<char, 16384> part;
  ssize_t num_bytes = 0;
  do {
    num_bytes = read(fd, part.data(), part.size());
    if (num_bytes > 0) content.append(part.data(), static_cast<std::size_t>(num_bytes));
  } while (num_bytes > 0 || (num_bytes < 0 && errno == EINTR));
  const int error = num_bytes < 0 ? errno : 0;
  close(fd);
  return error;
}

std::string read_file(const std::string& path) {
  std::string content;
  const int error = read_file(path, content);
  ESPALIER_CHECK_CONFIG(error == 0, "{}: cannot read the file: {}; expected a readable file", path,
                        std::system_category().message(error));
  return content;
}

}  // namespace espalier
