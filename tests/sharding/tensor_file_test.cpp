// SPDX-License-Identifier: Apache-2.0
#include "espalier/sharding/tensor_file.hpp"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "espalier/base/error.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/small_disk.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TensorFiles : public ::testing::Test {
 protected:
  testing_support::TemporaryFolder folder_;
  std::string path_ = folder_.file("model.safetensors");
};

// One tensor of each dtype; values that every one of them holds exactly.
std::vector<NamedTensor> all_dtypes() {
  std::vector<NamedTensor> tensors;
  for (const auto type :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte}) {
    tensors.push_back({std::string("t.") + at::toString(type), at::arange(6, at::kLong).reshape({2, 3}).to(type)});
  }
  tensors.push_back({"t.Bool", at::tensor({1, 0, 1, 1, 0, 0}).reshape({2, 3}).to(at::kBool)});
  return tensors;
}

// A file made by hand: any header, any data.
void write_raw(const std::string& path, const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  testing_support::write_text(path, std::string(reinterpret_cast<const char*>(&length), 8) + header + data);
}

std::string output_of(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen");
  std::string text;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) text += static_cast<char>(c);
  if (pclose(pipe) != 0) text += "\nfailed";
  return text;
}

std::string peer(const std::string& action, const std::string& path) {
  return output_of(fmt::format("'{}' '{}' {} '{}'", ESPALIER_PYTHON, ESPALIER_SAFETENSORS_PEER, action, path));
}

TEST_F(TensorFiles, ReturnEveryDtypeBitForBit) {
  const auto tensors = all_dtypes();
  write_tensor_file(path_, tensors, {{"step", "12"}, {"quote", "a \"b\" \\ \n"}});
  const TensorFile file(path_);
  EXPECT_EQ(file.metadata(), (StringMap{{"step", "12"}, {"quote", "a \"b\" \\ \n"}}));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& info = file.tensors()[i];
    EXPECT_EQ(info.name, tensors[i].name);
    EXPECT_EQ(info.shape, tensors[i].tensor.sizes().vec());
    EXPECT_EQ(info.num_bytes, static_cast<std::int64_t>(tensors[i].tensor.nbytes()));
    const at::Tensor read = file.read(info.name);
    EXPECT_EQ(read.scalar_type(), tensors[i].tensor.scalar_type());
    EXPECT_TRUE(at::equal(read, tensors[i].tensor)) << info.name;
  }
}

TEST_F(TensorFiles, KeepNanInfinityAndNegativeZero) {
  const at::Tensor odd = at::tensor({std::nan("1"), INFINITY, -INFINITY, -0.0F, 1e-42F}, at::kFloat);
  write_tensor_file(path_, std::vector<NamedTensor>{{"odd", odd}});
  EXPECT_TRUE(at::equal(TensorFile(path_).read("odd").view(at::kInt), odd.view(at::kInt)));
}

TEST_F(TensorFiles, HoldScalarsEmptyTensorsAndAnyStrides) {
  const at::Tensor base = at::arange(24, at::kFloat).reshape({2, 3, 4});
  const std::vector<NamedTensor> tensors{
      {"scalar", at::scalar_tensor(2.5, at::kDouble)}, {"empty", at::empty({3, 0, 2})},
      {"transposed", base.permute({2, 0, 1})},         {"expanded", at::ones({1}).expand({5})},
      {"needs grad", at::ones({2}).requires_grad_()},  {"", at::zeros({1})},
      {"negative view", at::_neg_view(base)}};
  write_tensor_file(path_, tensors);
  const TensorFile file(path_);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor read = file.read(name);
    EXPECT_EQ(read.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(at::equal(read, tensor.detach())) << name;
    EXPECT_FALSE(read.requires_grad());
  }
}

TEST_F(TensorFiles, WithoutTensorsAreFiles) {
  write_tensor_file(path_, {});
  EXPECT_TRUE(TensorFile(path_).tensors().empty());
}

TEST_F(TensorFiles, GiveAnySliceOfTheFlatElements) {
  const at::Tensor whole = at::arange(700'000, at::kInt);  // several pieces of the checksum's pass
  write_tensor_file(path_,
                    std::vector<NamedTensor>{{"before", at::ones({3}, at::kByte)}, {"w", whole.reshape({7, 100'000})}});
  const TensorFile file(path_);
  for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 0}, {0, 700'000}, {1, 2}, {262'143, 262'146}, {699'999, 700'000}, {700'000, 700'000}}) {
    EXPECT_TRUE(at::equal(file.read_elems("w", begin, end), whole.slice(0, begin, end))) << begin;
  }
  for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{{-1, 2}, {3, 2}, {0, 700'001}}) {
    EXPECT_THAT(testing_support::error_of([&, begin = begin, end = end] { file.read_elems("w", begin, end); }),
                AllOf(HasSubstr("'w'"), HasSubstr("700000"), HasSubstr(std::to_string(end))));
  }
}

TEST_F(TensorFiles, AreReadByAnotherReader) {
  write_tensor_file(path_, all_dtypes(), {{"step", "12"}});
  const std::string numbers = " [2, 3] 0.0 1.0 2.0 3.0 4.0 5.0\n";
  EXPECT_EQ(peer("read", path_), "t.BFloat16 BF16" + numbers + "t.Bool BOOL [2, 3] 1.0 0.0 1.0 1.0 0.0 0.0\n" +
                                     "t.Byte U8" + numbers + "t.Char I8" + numbers + "t.Double F64" + numbers +
                                     "t.Float F32" + numbers + "t.Half F16" + numbers + "t.Int I32" + numbers +
                                     "t.Long I64" + numbers + "t.Short I16" + numbers + "{\"step\": \"12\"}\n");
}

TEST_F(TensorFiles, OfAnotherWriterAreReadOnRequest) {
  ASSERT_EQ(peer("write", path_), "");
  EXPECT_THAT(testing_support::error_of([&] { TensorFile file(path_); }),
              AllOf(HasSubstr("no checksum"), HasSubstr("Checksums::if_present")));
  const TensorFile file(path_, Checksums::if_present);
  EXPECT_EQ(file.metadata(), (StringMap{{"origin", "peer"}}));
  EXPECT_TRUE(at::equal(file.read("weight"), at::tensor({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.5F}).reshape({2, 3})));
  EXPECT_EQ(file.read("steps").item<std::int64_t>(), -7);
  file.verify();
}

TEST_F(TensorFiles, RefuseWhatAHeaderCannotHold) {
  const at::Tensor one = at::ones({1});
  const auto write = [&](std::vector<NamedTensor> tensors, StringMap metadata = {}) {
    return [=, this] { write_tensor_file(path_, tensors, metadata); };
  };
  EXPECT_THAT(testing_support::error_of(write({{"a", one}, {"b", one}, {"a", one}})),
              AllOf(HasSubstr(path_), HasSubstr("'a' is given twice")));
  EXPECT_THAT(testing_support::error_of(write({{"__metadata__", one}})), HasSubstr("reserved by the format"));
  EXPECT_THAT(testing_support::error_of(write({{"a", at::Tensor()}})), HasSubstr("'a' is undefined"));
  EXPECT_THAT(testing_support::error_of(write({{"a", one.to_sparse()}})), HasSubstr("sparse"));
  EXPECT_THAT(testing_support::error_of(write({{"a", one.to(at::kComplexFloat)}})),
              AllOf(HasSubstr("ComplexFloat"), HasSubstr("F64 F32")));
  EXPECT_THAT(testing_support::error_of(write({{"\xff", one}})), HasSubstr("not UTF-8"));
  EXPECT_THAT(testing_support::error_of(write({{"a", one}}, {{"crc64.a", "x"}})), HasSubstr("'crc64.a' is reserved"));
  EXPECT_THAT(testing_support::error_of(write({{"a", one}}, {{"header_crc64", "x"}})),
              HasSubstr("'header_crc64' is reserved"));
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(TensorFiles, SurviveAFullDiskWhileTheNextIsWritten) {
  write_tensor_file(path_, std::vector<NamedTensor>{{"w", at::arange(10)}});
  {
    const testing_support::SmallDisk disk(50'000);
    EXPECT_THAT(testing_support::error_of(
                    [&] { write_tensor_file(path_, std::vector<NamedTensor>{{"w", at::zeros({100'000})}}); }),
                AllOf(HasSubstr(path_), HasSubstr("byte 50000"), HasSubstr("File too large")));
  }
  EXPECT_TRUE(at::equal(TensorFile(path_).read("w"), at::arange(10)));
  EXPECT_EQ(folder_.names(), std::set<std::string>{"model.safetensors"});
  EXPECT_THAT(testing_support::error_of([&] { write_tensor_file("/proc/x.safetensors", {}); }),
              HasSubstr("/proc/x.safetensors"));
}

TEST_F(TensorFiles, ThatAreMissingOrNoFilesAreRefused) {
  EXPECT_THAT(testing_support::error_of([&] { TensorFile file(path_); }),
              AllOf(HasSubstr(path_), HasSubstr("No such file")));
  EXPECT_THAT(testing_support::error_of([&] { TensorFile file(folder_.path()); }), HasSubstr("not a regular file"));
  write_tensor_file(path_, std::vector<NamedTensor>{{"one", at::ones({1})}, {"two", at::ones({1})}});
  EXPECT_THAT(testing_support::error_of([&] { TensorFile(path_).read("three"); }),
              AllOf(HasSubstr("'three'"), HasSubstr("2: one, two")));
}

// Without checksums each rule must hold by itself.
TEST_F(TensorFiles, WithAWrongHeaderAreRefusedInWords) {
  const std::string sixteen(16, '\1');
  const auto entry = [](const std::string& shape, const std::string& offsets, const std::string& dtype = "F32") {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[1]", "not a JSON object"},
      {"{\"a\":", "not JSON"},
      {"{\"a\":" + std::string(1000, '['), "not JSON"},
      {"{\"a\":3}", "entry of tensor 'a'"},
      {R"({"a":{"shape":[4],"data_offsets":[0,16]}})", "'a' has no dtype"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,16]}})", "shape of tensor 'a'"},
      {R"({"a":{"dtype":"F32","shape":[4]}})", "data_offsets of tensor 'a'"},
      {"{\"a\":" + entry("[4]", "[0,16]", "F4") + "}", "dtype 'F4'"},
      {"{\"a\":" + entry("[-4]", "[0,16]") + "}", "shape of tensor 'a'"},
      {"{\"a\":" + entry("[4.0]", "[0,16]") + "}", "shape of tensor 'a'"},
      {"{\"a\":" + entry("[18446744073709551615]", "[0,16]") + "}", "shape of tensor 'a'"},
      {"{\"a\":" + entry("[4611686018427387904,4]", "[0,16]") + "}", "more than 2^63 bytes"},
      {"{\"a\":" + entry("[0,4611686018427387904,4]", "[0,0]") + "}", "more than 2^63 bytes"},
      {"{\"a\":" + entry("[5]", "[0,16]") + "}", "takes 20 bytes, but its data_offsets 0 to 16 hold 16"},
      {"{\"a\":" + entry("[4]", "[16,0]") + "}", "not two ascending numbers"},
      {"{\"a\":" + entry("[4]", "[0,16,32]") + "}", "not two ascending numbers"},
      {"{\"a\":" + entry("[5]", "[0,20]") + "}", "ends at byte 20 of the data, but there are 16"},
      {"{\"a\":" + entry("[2]", "[0,8]") + "}", "end at byte 8 of the data, but there are 16"},
      {"{\"a\":" + entry("[2]", "[0,8]") + ",\"b\":" + entry("[2]", "[4,12]") + "}",
       "'b' begins at byte 4 of the data, inside"},
      {"{\"a\":" + entry("[1]", "[0,4]") + ",\"b\":" + entry("[2]", "[8,16]") + "}",
       "bytes 4 to 8 of the data, before tensor 'b'"},
      {"{\"a\":" + entry("[2]", "[0,8]") + ",\"a\":" + entry("[2]", "[8,16]") + "}", "key 'a' twice"},
      {"{\"__metadata__\":[],\"a\":" + entry("[4]", "[0,16]") + "}", "'__metadata__' is not a JSON object"},
      {"{\"__metadata__\":{\"k\":1},\"a\":" + entry("[4]", "[0,16]") + "}", "metadata 'k' is not a string"},
  };
  for (const auto& [header, message] : cases) {
    write_raw(path_, header, sixteen);
    EXPECT_THAT(testing_support::error_of([&] { TensorFile file(path_, Checksums::if_present); }),
                AllOf(HasSubstr(path_), HasSubstr(message)))
        << header;
  }
  write_raw(path_, "{\"a\":" + entry("[4]", "[0,16]") + "}", sixteen);
  EXPECT_EQ(TensorFile(path_, Checksums::if_present).tensors().size(), 1U);
  write_raw(path_, "{\"a\":" + entry("[2,8]", "[0,16]", "BOOL") + "}",
            std::string(11, '\1') + '\7' + std::string(4, '\0'));
  EXPECT_THAT(testing_support::error_of([&] { TensorFile(path_, Checksums::if_present).read("a"); }),
              HasSubstr("element 11 of tensor 'a' is 7"));
}

TEST_F(TensorFiles, WithAnAbsurdHeaderLengthAreRefusedBeforeAnythingIsAllocated) {
  for (const std::uint64_t length : {std::uint64_t{100'000'001}, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    testing_support::write_text(path_, std::string(reinterpret_cast<const char*>(&length), 8) + "{}");
    EXPECT_THAT(testing_support::error_of([&] { TensorFile file(path_); }),
                AllOf(HasSubstr(std::to_string(length)), HasSubstr("at most 100000000")));
  }
  const std::uint64_t length = 3;
  testing_support::write_text(path_, std::string(reinterpret_cast<const char*>(&length), 8) + "{}");
  EXPECT_THAT(testing_support::error_of([&] { TensorFile file(path_); }),
              HasSubstr("takes 3 bytes, but the file has 2"));
}

// Whatever is done to a file, opening or verifying it is a ConfigError that names it.
class DamagedTensorFiles : public TensorFiles {
 protected:
  void SetUp() override {
    write_tensor_file(path_,
                      std::vector<NamedTensor>{{"bias", at::arange(5, at::kDouble)},
                                               {"mask", at::tensor({1, 0, 1}).to(at::kBool)},
                                               {"none", at::empty({0})}},
                      {{"step", "3"}});
    good_ = testing_support::read_text(path_);
  }

  std::string complaint(const std::string& content) {
    testing_support::write_text(path_, content);
    try {
      const TensorFile file(path_);
      file.verify();
      return "";
    } catch (const ConfigError& error) {
      return error.what();
    }
  }

  std::string good_;
};

TEST_F(DamagedTensorFiles, AreRefusedAfterAFlippedBitInAnyByte) {
  ASSERT_EQ(complaint(good_), "");
  for (std::size_t i = 0; i < good_.size(); ++i) {
    for (const int bit : {static_cast<int>(i % 8), 5}) {  // bit 5 turns letters into capitals
      std::string bad = good_;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      EXPECT_THAT(complaint(bad), HasSubstr(path_)) << "byte " << i << ", bit " << bit;
    }
  }
}

TEST_F(DamagedTensorFiles, AreRefusedWhenCutAnywhereOrLonger) {
  for (std::size_t size = 0; size < good_.size(); ++size) {
    EXPECT_THAT(complaint(good_.substr(0, size)), HasSubstr(path_)) << "cut to " << size;
  }
  EXPECT_THAT(complaint(good_ + "x"), HasSubstr("there are 44"));
}

TEST_F(DamagedTensorFiles, AreRefusedAfterRandomDamage) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::string bad = good_;
    const std::size_t first = random() % bad.size();
    const std::size_t size = 1 + random() % 40;
    for (std::size_t i = first; i < std::min(first + size, bad.size()); ++i) bad[i] = static_cast<char>(random());
    if (bad == good_) continue;
    EXPECT_THAT(complaint(bad), HasSubstr(path_)) << "round " << round;
  }
}

TEST_F(DamagedTensorFiles, SayWhichTensorAndWhichBytes) {
  std::string bad = good_;
  bad[bad.size() - 20] ^= 1;  // in bias, the first 40 of the last 43 bytes
  const auto first = bad.size() - 43;
  testing_support::write_text(path_, bad);
  const TensorFile file(path_);
  EXPECT_THAT(
      testing_support::error_of([&] { file.read_elems("bias", 0, 1); }),
      AllOf(HasSubstr(fmt::format("'bias' (bytes {} to {} of the file)", first, first + 40)), HasSubstr("CRC-64")));
  EXPECT_THAT(testing_support::error_of([&] { file.read("bias"); }), HasSubstr("'bias'"));
  EXPECT_TRUE(file.read("mask")[0].item<bool>());  // unharmed
}

// Damage that checksums cannot show (there are none) must still end in an error or in tensors,
// never in a crash.
TEST_F(DamagedTensorFiles, OfOtherProgramsNeverCrashTheReader) {
  ASSERT_EQ(peer("write", path_), "");
  const std::string foreign = testing_support::read_text(path_);
  std::mt19937 random(11);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bad = foreign;
    for (std::size_t i = 0; i <= random() % 3; ++i) bad[random() % bad.size()] = static_cast<char>(random());
    testing_support::write_text(path_, bad);
    try {
      const TensorFile file(path_, Checksums::if_present);
      for (const TensorInfo& info : file.tensors()) EXPECT_EQ(file.read(info.name).numel(), info.num_elems);
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace espalier
