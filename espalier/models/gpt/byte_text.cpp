// SPDX-License-Identifier: Apache-2.0
#include "espalier/models/gpt/byte_text.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

void append_file(const std::string& path, std::string& text) {
  const std::size_t before = text.size();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), std::fclose);
  ESPALIER_CHECK_CONFIG(file != nullptr, "text {}: cannot open the file: {}", path,
                        std::system_category().message(errno));
  char piece[1 << 16];
  while (const std::size_t got = std::fread(piece, 1, sizeof piece, file.get())) text.append(piece, got);
  ESPALIER_CHECK_CONFIG(std::ferror(file.get()) == 0, "text {}: cannot read the file: {}", path,
                        std::system_category().message(errno));
  ESPALIER_CHECK_CONFIG(text.size() > before, "text {}: the file is empty; expected text to train on", path);
}

}  // namespace

ByteText::ByteText(std::span<const std::string> paths, std::int64_t context) : context_(context) {
  ESPALIER_CHECK_CONFIG(context >= 1, "text: context {}; expected at least 1", context);
  ESPALIER_CHECK_CONFIG(!paths.empty(), "text: no file was given; expected one or more");
  std::string text;
  for (const std::string& path : paths) append_file(path, text);
  const auto num_bytes = static_cast<std::int64_t>(text.size());
  ESPALIER_CHECK_CONFIG(num_bytes > context,
                        "text {}{}: {} bytes in all; expected at least context + 1 = {}; give more "
                        "text or a shorter context",
                        paths.front(), paths.size() > 1 ? fmt::format(" and {} more", paths.size() - 1) : "", num_bytes,
                        context + 1);
  bytes_ = at::empty({num_bytes}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(bytes_.data_ptr(), text.data(), text.size());
}

ByteText::Batch ByteText::batch(std::span<const std::int64_t> samples) const {
  const auto num_rows = static_cast<std::int64_t>(samples.size());
  const auto options = at::TensorOptions().dtype(at::kLong);
  Batch batch{.input = at::empty({num_rows, context_}, options), .target = at::empty({num_rows, context_}, options)};
  const auto* bytes = bytes_.const_data_ptr<std::uint8_t>();
  auto* input = batch.input.mutable_data_ptr<std::int64_t>();
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t sample : samples) {
    ESPALIER_CHECK(sample >= 0 && sample < num_samples(), "sample {} of {}", sample, num_samples());
    const std::uint8_t* window = bytes + sample * context_;
    input = std::copy(window, window + context_, input);
    target = std::copy(window + 1, window + 1 + context_, target);
  }
  return batch;
}

}  // namespace espalier
