// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/atomic_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mount.h>

#include <cerrno>
#include <set>
#include <string>

#include "tests/support/error_of.hpp"
#include "tests/support/small_disk.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  const testing_support::TemporaryFolder folder;
  const std::string path = folder.file("notes");
  testing_support::write_text(path, "old");
  AtomicFile file(path);
  file.append("hello world");
  file.overwrite(6, "there");
  EXPECT_EQ(testing_support::read_text(path), "old");
  file.commit();
  EXPECT_EQ(testing_support::read_text(path), "hello there");
  EXPECT_EQ(folder.names(), std::set<std::string>{"notes"});
}

TEST(AtomicFile, GivenUpLeavesTheOldOneAndNothingElse) {
  const testing_support::TemporaryFolder folder;
  testing_support::write_text(folder.file("notes"), "old");
  {
    AtomicFile(folder.file("notes")).append("half of");
  }
  EXPECT_EQ(testing_support::read_text(folder.file("notes")), "old");
  EXPECT_EQ(folder.names(), std::set<std::string>{"notes"});
}

TEST(AtomicFile, TwoAtOnceOfOneNameDoNotMix) {
  const testing_support::TemporaryFolder folder;
  AtomicFile first(folder.file("notes"));
  AtomicFile second(folder.file("notes"));
  first.append("first");
  second.append("second, longer");
  second.commit();
  first.commit();
  EXPECT_EQ(testing_support::read_text(folder.file("notes")), "first");
}

TEST(AtomicFile, NamesAMissingFolderAndAFolderInItsPlace) {
  const testing_support::TemporaryFolder folder;
  EXPECT_THAT(testing_support::error_of([&] { AtomicFile(folder.file("missing/notes")); }),
              AllOf(HasSubstr(folder.file("missing/notes")), HasSubstr("No such file or directory")));
  EXPECT_THAT(testing_support::error_of([&] { AtomicFile(folder.path()); }), HasSubstr("Is a directory"));
  EXPECT_THAT(testing_support::error_of([&] { AtomicFile("/proc/notes"); }), HasSubstr("/proc/notes: cannot create"));
}

TEST(AtomicFile, OnAFullDiskSaysAtWhichByteAndKeepsTheOldOne) {
  const testing_support::TemporaryFolder folder;
  const std::string path = folder.file("notes");
  testing_support::write_text(path, "old");
  const std::string text(100'000, 'x');
  {
    const testing_support::SmallDisk disk(30'000);
    EXPECT_THAT(testing_support::error_of([&] { write_file_atomically(path, text); }),
                AllOf(HasSubstr(path), HasSubstr("byte 30000"), HasSubstr("File too large")));
  }
  EXPECT_EQ(testing_support::read_text(path), "old");
  EXPECT_EQ(folder.names(), std::set<std::string>{"notes"});
  write_file_atomically(path, text);
  EXPECT_EQ(testing_support::read_text(path), text);
}

// The same on a file system that is really full, where this user may mount one.
TEST(AtomicFile, OnAFullFileSystemKeepsTheOldOne) {
  const testing_support::TemporaryFolder folder;
  if (mount("espalier-test", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    ASSERT_TRUE(errno == EPERM || errno == EACCES) << errno;
    return;  // SmallDisk above covers the same code
  }
  const std::string path = folder.file("notes");
  testing_support::write_text(path, "old");
  EXPECT_THAT(testing_support::error_of([&] { write_file_atomically(path, std::string(100'000, 'x')); }),
              AllOf(HasSubstr(path), HasSubstr("No space left on device")));
  EXPECT_EQ(testing_support::read_text(path), "old");
  EXPECT_EQ(folder.names(), std::set<std::string>{"notes"});
  EXPECT_EQ(umount(folder.path().c_str()), 0);
}

}  // namespace
}  // namespace espalier
