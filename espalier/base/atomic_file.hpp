// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

// A file that appears whole or not at all: written under "PATH.<pid>.<n>.tmp" in the same folder;
// commit() flushes it to disk, renames it over PATH and flushes the folder. Otherwise the
// destructor removes it and an older PATH is untouched. Every failure is a ConfigError "PATH: what
// failed and the system's reason".
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(AtomicFile&&) = delete;

  void append(const void* data, std::size_t num_bytes);
  void append(std::string_view text) { append(text.data(), text.size()); }
  // Overwrites bytes already appended.
  void overwrite(std::int64_t offset, std::string_view text);
  void commit();

 private:
  void write_at(std::int64_t offset, const void* data, std::size_t num_bytes);
  [[noreturn]] void fail(std::string_view action, int error) const;

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  bool renamed_ = false;
  std::int64_t size_ = 0;
};

// An AtomicFile of one text.
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace espalier
