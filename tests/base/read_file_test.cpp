// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/read_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/support/error_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier {
namespace {

using testing_support::TemporaryFolder;

TEST(ReadFile, GivesEveryByte) {
  const TemporaryFolder folder;
  const std::string path = folder.file("bytes");
  std::string written(40000, 'x');
  written[20000] = '\0';
  testing_support::write_text(path, written);
  EXPECT_EQ(read_file(path), written);
}

TEST(ReadFile, SaysWhyItCannot) {
  // A folder can be opened but not read, like /proc's files of a process that has just ended.
  const TemporaryFolder folder;
  EXPECT_EQ(testing_support::error_of([&] { read_file(folder.path()); }),
            folder.path() + ": cannot read the file: Is a directory; expected a readable file");
  std::string content = "old";
  EXPECT_EQ(read_file(folder.path(), content), EISDIR);
  EXPECT_EQ(content, "");
  EXPECT_EQ(read_file(folder.file("missing"), content), ENOENT);
}

}  // namespace
}  // namespace espalier
