// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/atomic_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

constexpr std::size_t kMaxWriteBytes = std::size_t{1} << 30;  // Linux moves at most 2 GiB in one call

std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path_, ignored)) fail("replace", EISDIR);
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = fmt::format("{}.{}.{}.tmp", path_, getpid(), attempt);
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno != EEXIST && errno != EINTR) fail("create", errno);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!renamed_) unlink(temporary_.c_str());
}

void AtomicFile::append(const void* data, std::size_t num_bytes) {
  write_at(size_, data, num_bytes);
  size_ += static_cast<std::int64_t>(num_bytes);
}

void AtomicFile::overwrite(std::int64_t offset, std::string_view text) {
  ESPALIER_CHECK(offset >= 0 && offset + static_cast<std::int64_t>(text.size()) <= size_,
                 "overwriting bytes {} to {} of a file of {}", offset, offset + static_cast<std::int64_t>(text.size()),
                 size_);
  write_at(offset, text.data(), text.size());
}

void AtomicFile::commit() {
  if (fsync(fd_) != 0) fail("flush", errno);
  if (close(std::exchange(fd_, -1)) != 0) fail("close", errno);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename", errno);
  renamed_ = true;
  const int folder = open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool flushed = folder >= 0 && fsync(folder) == 0;
  const int error = errno;
  if (folder >= 0) close(folder);
  ESPALIER_CHECK_CONFIG(flushed,
                        "{}: written, but its folder could not be flushed: {}; the file may not "
                        "survive a power failure",
                        path_, std::system_category().message(error));
}

void AtomicFile::write_at(std::int64_t offset, const void* data, std::size_t num_bytes) {
  const auto* bytes = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t written = pwrite(fd_, bytes, std::min(num_bytes, kMaxWriteBytes), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(fmt::format("write byte {} of", offset), written < 0 ? errno : ENOSPC);
    bytes += written;
    offset += written;
    num_bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::fail(std::string_view action, int error) const {
  throw ConfigError(
      fmt::format("{}: cannot {} the file: {}; expected a writable folder with room; an older file of "
                  "this name is untouched",
                  path_, action, std::system_category().message(error)));
}

void write_file_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.append(text);
  file.commit();
}

}  // namespace espalier
