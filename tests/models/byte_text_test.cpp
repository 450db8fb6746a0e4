// SPDX-License-Identifier: Apache-2.0
#include "espalier/models/gpt/byte_text.hpp"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/error_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ByteTexts : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) {
    testing_support::write_text(folder_.file(name), text);
    return folder_.file(name);
  }

  testing_support::TemporaryFolder folder_;
};

using Paths = std::vector<std::string>;

TEST_F(ByteTexts, GiveWindowsAndTheBytesThatFollow) {
  const ByteText text(Paths{file("a", "abcdef"), file("b", "gh\xff")}, 3);
  EXPECT_EQ(text.num_bytes(), 9);
  EXPECT_EQ(text.num_samples(), 2);
  const auto [input, target] = text.batch(std::vector<std::int64_t>{1, 0, 1});
  EXPECT_TRUE(at::equal(input, at::tensor({'d', 'e', 'f', 'a', 'b', 'c', 'd', 'e', 'f'}, at::kLong).view({3, 3})));
  EXPECT_TRUE(at::equal(target, at::tensor({'e', 'f', 'g', 'b', 'c', 'd', 'e', 'f', 'g'}, at::kLong).view({3, 3})));
  const ByteText bytes(Paths{folder_.file("b")}, 2);
  EXPECT_EQ(bytes.batch(std::vector<std::int64_t>{0}).target[0][1].item<std::int64_t>(), 255);
}

TEST_F(ByteTexts, PredictEveryByteButTheFirstOnceAnEpoch) {
  std::string content(100, ' ');
  std::iota(content.begin(), content.end(), '\0');
  const ByteText text(Paths{file("a", content)}, 9);
  ASSERT_EQ(text.num_samples(), 11);
  std::vector<std::int64_t> all(11);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_TRUE(at::equal(text.batch(all).target.flatten(), at::arange(1, 100)));
}

TEST_F(ByteTexts, HavePartsThatAreTextsOfTheirOwn) {
  const ByteText text(Paths{file("a", "abcdef"), file("b", "ghij")}, 3);
  const ByteText part = text.part(4, 6);
  EXPECT_EQ(part.num_bytes(), 6);
  EXPECT_EQ(part.num_samples(), 1);
  const at::Tensor input = part.batch(std::vector<std::int64_t>{0}).input;
  EXPECT_TRUE(at::equal(input, at::tensor({'e', 'f', 'g'}, at::kLong).view({1, 3})));
  EXPECT_THAT(testing_support::error_of([&] { text.part(0, 3); }),
              AllOf(HasSubstr("3 of its 10 bytes"), HasSubstr("context + 1 = 4")));
}

TEST_F(ByteTexts, MayBeLargerThanMemory) {
  const std::string path = file("sparse", "begin");
  std::filesystem::resize_file(path, std::int64_t{1} << 40);
  const ByteText text(Paths{file("a", "abc"), path}, 7);
  EXPECT_EQ(text.num_samples(), ((std::int64_t{1} << 40) + 2) / 7);
  const at::Tensor input = text.batch(std::vector<std::int64_t>{0, text.num_samples() - 1}).input;
  EXPECT_TRUE(at::equal(input[0], at::tensor({'a', 'b', 'c', 'b', 'e', 'g', 'i'}, at::kLong)));
  EXPECT_TRUE(at::equal(input[1], at::zeros({7}, at::kLong)));
  text.fingerprint();
}

TEST_F(ByteTexts, HaveAFingerprintThatTellsThemApart) {
  std::string content(300'000, 'x');
  const std::uint64_t first = ByteText(Paths{file("a", content)}, 7).fingerprint();
  EXPECT_EQ(ByteText(Paths{file("b", content.substr(0, 100'000)), file("c", content.substr(100'000))}, 9).fingerprint(),
            first);
  EXPECT_NE(ByteText(Paths{file("d", content + "x")}, 7).fingerprint(), first);
  for (const std::size_t at : {std::size_t{0}, content.size() - 1}) {
    std::string other = content;
    other[at] = 'y';
    EXPECT_NE(ByteText(Paths{file("e", other)}, 7).fingerprint(), first) << at;
  }
}

TEST_F(ByteTexts, ThatAreCutWhileTheyAreReadAreNamed) {
  const std::string path = file("a", std::string(100, 'x'));
  const ByteText text(Paths{path}, 9);
  testing_support::write_text(path, std::string(50, 'x'));
  EXPECT_THAT(testing_support::error_of([&] { text.batch(std::vector<std::int64_t>{10}); }),
              AllOf(HasSubstr(path), HasSubstr("had 100 when the run started")));
}

TEST_F(ByteTexts, GiveAnEmptyBatchItsShape) {
  const ByteText text(Paths{file("a", "abcdef")}, 3);
  EXPECT_EQ(text.batch({}).input.sizes(), at::IntArrayRef({0, 3}));
}

TEST_F(ByteTexts, ThatCannotBeTrainedOnAreRefused) {
  const std::string good = file("good", std::string(128, 'x'));
  EXPECT_THAT(testing_support::error_of([&] { ByteText(Paths{good, folder_.file("gone")}, 16); }),
              AllOf(HasSubstr(folder_.file("gone")), HasSubstr("No such file or directory")));
  EXPECT_THAT(testing_support::error_of([&] { ByteText(Paths{file("empty", ""), good}, 16); }),
              AllOf(HasSubstr(folder_.file("empty")), HasSubstr("is empty")));
  EXPECT_THAT(testing_support::error_of([&] { ByteText(Paths{folder_.path()}, 16); }),
              AllOf(HasSubstr(folder_.path()), HasSubstr("Is a directory")));
  EXPECT_THAT(testing_support::error_of([&] { ByteText(Paths{"/dev/null"}, 16); }),
              AllOf(HasSubstr("/dev/null"), HasSubstr("no regular file")));
  EXPECT_THAT(testing_support::error_of([&] { ByteText(Paths{}, 16); }), HasSubstr("no file was given"));
  EXPECT_THAT(testing_support::error_of([&] { ByteText(Paths{good}, 128); }),
              AllOf(HasSubstr("128 bytes in all"), HasSubstr("context + 1 = 129")));
  EXPECT_THAT(testing_support::error_of([&] { ByteText(Paths{good}, 0); }), HasSubstr("context 0"));
  EXPECT_EQ(ByteText(Paths{good}, 127).num_samples(), 1);
}

}  // namespace
}  // namespace espalier
