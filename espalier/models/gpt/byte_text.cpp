// SPDX-License-Identifier: Apache-2.0
// Files are read with pread, not mapped: a file that is cut while a run reads it is then an error with its name, where a
// mapping would end the rank by SIGBUS.
#include "espalier/models/gpt/byte_text.hpp"

#include <ATen/Functions.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/base/crc64.hpp"

namespace espalier {
namespace {

std::string reason(int number) { return std::system_category().message(number); }

}  // namespace

// Open files, as one run of bytes.
class ByteText::Files {
 public:
  explicit Files(std::span<const std::string> paths) {
    files_.reserve(paths.size());
    for (const std::string& path : paths) {
      const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      ESPALIER_CHECK_CONFIG(descriptor >= 0, "text {}: cannot open the file: {}", path, reason(errno));
      files_.push_back({path, descriptor, num_bytes_});
      struct stat found = {};
      ESPALIER_CHECK_CONFIG(fstat(descriptor, &found) == 0, "text {}: cannot read the file: {}", path, reason(errno));
      ESPALIER_CHECK_CONFIG(!S_ISDIR(found.st_mode), "text {}: cannot read the file: {}", path, reason(EISDIR));
      ESPALIER_CHECK_CONFIG(S_ISREG(found.st_mode),
                            "text {}: it is no regular file; expected one, which can be read at any place: write the "
                            "text to a file first",
                            path);
      ESPALIER_CHECK_CONFIG(found.st_size > 0, "text {}: the file is empty; expected text to train on", path);
      num_bytes_ += found.st_size;
    }
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() {
    for (const File& file : files_) close(file.descriptor);
  }

  std::int64_t num_bytes() const { return num_bytes_; }

  // Fills `bytes` with those from `first` on, which are there.
  void read(std::int64_t first, std::span<std::uint8_t> bytes) const {
    auto file = std::ranges::upper_bound(files_, first, {}, &File::first_byte) - 1;
    while (!bytes.empty()) {
      const std::int64_t end = file + 1 == files_.end() ? num_bytes_ : (file + 1)->first_byte;
      const auto wanted = static_cast<std::size_t>(std::min<std::int64_t>(end - first, std::ssize(bytes)));
      const ssize_t got = pread(file->descriptor, bytes.data(), wanted, first - file->first_byte);
      if (got < 0 && errno == EINTR) continue;
      ESPALIER_CHECK_CONFIG(got >= 0, "text {}: cannot read the file: {}", file->path, reason(errno));
      ESPALIER_CHECK_CONFIG(got > 0,
                            "text {}: it ends at byte {} but had {} when the run started; leave it as it is while it "
                            "is read",
                            file->path, first - file->first_byte, end - file->first_byte);
      first += got;
      bytes = bytes.subspan(static_cast<std::size_t>(got));
      if (first == end) ++file;
    }
  }

 private:
  struct File {
    std::string path;
    int descriptor;
    std::int64_t first_byte;  // among all
  };
  std::vector<File> files_;
  std::int64_t num_bytes_ = 0;
};

ByteText::ByteText(std::span<const std::string> paths, std::int64_t context) : context_(context) {
  ESPALIER_CHECK_CONFIG(context >= 1, "text: context {}; expected at least 1", context);
  ESPALIER_CHECK_CONFIG(!paths.empty(), "text: no file was given; expected one or more");
  files_ = std::make_shared<const Files>(paths);
  num_bytes_ = files_->num_bytes();
  ESPALIER_CHECK_CONFIG(num_bytes_ > context,
                        "text {}{}: {} bytes in all; expected at least context + 1 = {}; give more "
                        "text or a shorter context",
                        paths.front(), paths.size() > 1 ? fmt::format(" and {} more", paths.size() - 1) : "",
                        num_bytes_, context + 1);
}

ByteText ByteText::part(std::int64_t first_byte, std::int64_t num_bytes) const {
  ESPALIER_CHECK(first_byte >= 0 && num_bytes >= 0 && first_byte + num_bytes <= num_bytes_, "bytes {} to {} of {}",
                 first_byte, first_byte + num_bytes, num_bytes_);
  ESPALIER_CHECK_CONFIG(num_bytes > context_,
                        "text: a part of {} of its {} bytes; expected at least context + 1 = {}; give more text or a "
                        "shorter context",
                        num_bytes, num_bytes_, context_ + 1);
  ByteText result = *this;
  result.first_byte_ += first_byte;
  result.num_bytes_ = num_bytes;
  return result;
}

ByteText::Batch ByteText::batch(std::span<const std::int64_t> samples) const {
  const auto num_rows = static_cast<std::int64_t>(samples.size());
  const auto options = at::TensorOptions().dtype(at::kLong);
  Batch batch{.input = at::empty({num_rows, context_}, options), .target = at::empty({num_rows, context_}, options)};
  auto* input = batch.input.mutable_data_ptr<std::int64_t>();
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  std::vector<std::uint8_t> window(static_cast<std::size_t>(context_) + 1);
  for (const std::int64_t sample : samples) {
    ESPALIER_CHECK(sample >= 0 && sample < num_samples(), "sample {} of {}", sample, num_samples());
    files_->read(first_byte_ + sample * context_, window);
    input = std::copy(window.begin(), window.end() - 1, input);
    target = std::copy(window.begin() + 1, window.end(), target);
  }
  return batch;
}

std::uint64_t ByteText::fingerprint() const {
  constexpr std::int64_t kPlaces = 64, kPiece = 4096;
  std::uint64_t crc = crc64(0, &num_bytes_, sizeof num_bytes_);
  std::vector<std::uint8_t> piece(static_cast<std::size_t>(std::min(kPiece, num_bytes_)));
  const std::int64_t last = num_bytes_ - std::ssize(piece);
  const std::int64_t places = std::clamp((num_bytes_ + kPiece - 1) / kPiece, std::int64_t{1}, kPlaces);
  for (std::int64_t i = 0; i < places; ++i) {
    files_->read(first_byte_ + (places == 1 ? 0 : i * (last / (places - 1)) + i * (last % (places - 1)) / (places - 1)),
                 piece);
    crc = crc64(crc, piece.data(), piece.size());
  }
  return crc;
}

}  // namespace espalier
