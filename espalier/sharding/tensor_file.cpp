// SPDX-License-Identifier: Apache-2.0
// Bytes to and from safetensors files; safetensors_header.cpp has the format.
#include "espalier/sharding/tensor_file.hpp"

#include <ATen/Functions.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "espalier/base/atomic_file.hpp"
#include "espalier/base/check.hpp"
#include "espalier/base/crc64.hpp"
#include "espalier/sharding/safetensors_header.hpp"

namespace espalier {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;

TensorInfo describe(const std::string& path, const NamedTensor& named, std::int64_t offset) {
  const at::Tensor& tensor = named.tensor;
  ESPALIER_CHECK_CONFIG(tensor.defined() && tensor.layout() == at::kStrided,
                        "{}: tensor '{}' is undefined or sparse; expected a dense one", path, named.name);
  const std::int64_t elem_bytes = safetensors_elem_bytes(path, named.name, tensor.scalar_type());
  return {.name = named.name,
          .dtype = tensor.scalar_type(),
          .shape = tensor.sizes().vec(),
          .num_elems = tensor.numel(),
          .num_bytes = tensor.numel() * elem_bytes,
          .offset = offset,
          .crc64 = 0};
}

}  // namespace

void write_tensor_file(const std::string& path, std::span<const NamedTensor> tensors, const StringMap& metadata) {
  SafetensorsHeader header{.metadata = metadata, .tensors = {}};
  std::int64_t offset = 0;
  for (const NamedTensor& named : tensors) {
    header.tensors.push_back(describe(path, named, offset));
    offset += header.tensors.back().num_bytes;
  }
  const std::string placeholder = format_safetensors_header(path, header);  // the checksums come with the data

  AtomicFile file(path);
  const std::uint64_t length = placeholder.size();
  file.append(&length, sizeof length);
  file.append(placeholder);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor data = tensors[i].tensor.detach().to(at::kCPU).contiguous().resolve_neg();
    header.tensors[i].crc64 = crc64(0, data.const_data_ptr(), data.nbytes());
    file.append(data.const_data_ptr(), data.nbytes());
  }
  file.overwrite(kSafetensorsLengthBytes, format_safetensors_header(path, header));
  file.commit();
}

TensorFile::Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

TensorFile::TensorFile(std::string path, Checksums checksums)
    : path_(std::move(path)), file_(open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  ESPALIER_CHECK_CONFIG(file_.number() >= 0, "{}: cannot open the file: {}", path_,
                        std::system_category().message(errno));
  struct stat status{};
  ESPALIER_CHECK_CONFIG(fstat(file_.number(), &status) == 0 && S_ISREG(status.st_mode), "{}: not a regular file",
                        path_);
  const std::int64_t file_bytes = status.st_size;
  ESPALIER_CHECK_CONFIG(file_bytes >= kSafetensorsLengthBytes,
                        "{}: the file has {} bytes; expected at least the {} of the header's "
                        "length; it was cut short",
                        path_, file_bytes, kSafetensorsLengthBytes);
  std::uint64_t length = 0;
  read_bytes(0, &length, kSafetensorsLengthBytes);
  ESPALIER_CHECK_CONFIG(length <= static_cast<std::uint64_t>(kSafetensorsMaxHeaderBytes),
                        "{}: bytes 0 to 8 give a header of {} bytes; expected at most {}; {}", path_, length,
                        kSafetensorsMaxHeaderBytes, kSafetensorsDamaged);
  const auto header_bytes = static_cast<std::int64_t>(length);
  data_offset_ = kSafetensorsLengthBytes + header_bytes;
  ESPALIER_CHECK_CONFIG(data_offset_ <= file_bytes,
                        "{}: the header takes {} bytes, but the file has {} after its length; it "
                        "was cut short or is damaged",
                        path_, header_bytes, file_bytes - kSafetensorsLengthBytes);
  std::string text(length, '\0');
  read_bytes(kSafetensorsLengthBytes, text.data(), header_bytes);
  SafetensorsHeader header = parse_safetensors_header(path_, text, file_bytes - data_offset_, checksums);
  metadata_ = std::move(header.metadata);
  tensors_ = std::move(header.tensors);
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  verified_.resize(tensors_.size());
}

at::Tensor TensorFile::read(std::string_view name) const {
  const std::size_t index = index_of(name);
  return read_range(index, tensors_[index].shape, 0, tensors_[index].num_elems);
}

at::Tensor TensorFile::read_elems(std::string_view name, std::int64_t begin, std::int64_t end) const {
  const std::size_t index = index_of(name);
  ESPALIER_CHECK_CONFIG(0 <= begin && begin <= end && end <= tensors_[index].num_elems,
                        "{}: elements {} to {} of tensor '{}' were asked for, but it has {}", path_, begin, end, name,
                        tensors_[index].num_elems);
  return read_range(index, {end - begin}, begin, end);
}

void TensorFile::verify() const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) verify(i);
}

std::size_t TensorFile::index_of(std::string_view name) const {
  if (const auto found = index_.find(name); found != index_.end()) return found->second;
  std::vector<std::string_view> names;
  for (const TensorInfo& info : tensors_) names.push_back(info.name);
  throw ConfigError(fmt::format("{}: there is no tensor '{}'; the file holds {}: {}", path_, name, names.size(),
                                fmt::join(names, ", ")));
}

void TensorFile::read_bytes(std::int64_t offset, void* to, std::int64_t num_bytes) const {
  auto* bytes = static_cast<char*>(to);
  while (num_bytes > 0) {
    const ssize_t got = pread(file_.number(), bytes, static_cast<std::size_t>(num_bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    ESPALIER_CHECK_CONFIG(got >= 0, "{}: cannot read byte {}: {}", path_, offset,
                          std::system_category().message(errno));
    ESPALIER_CHECK_CONFIG(got > 0, "{}: the file ends at byte {}, {} too early; it was cut short while open", path_,
                          offset, num_bytes);
    bytes += got;
    offset += got;
    num_bytes -= got;
  }
}

void TensorFile::verify(std::size_t index) const {
  const TensorInfo& info = tensors_[index];
  if (verified_[index]) return;
  const std::int64_t begin = data_offset_ + info.offset;
  if (info.crc64) {
    std::vector<char> piece(static_cast<std::size_t>(std::min(kPieceBytes, info.num_bytes)));
    std::uint64_t crc = 0;
    for (std::int64_t done = 0; done < info.num_bytes; done += kPieceBytes) {
      const std::int64_t num_bytes = std::min(kPieceBytes, info.num_bytes - done);
      read_bytes(begin + done, piece.data(), num_bytes);
      crc = crc64(crc, piece.data(), static_cast<std::size_t>(num_bytes));
    }
    ESPALIER_CHECK_CONFIG(crc == *info.crc64,
                          "{}: tensor '{}' (bytes {} to {} of the file) has CRC-64 {:016x}, but "
                          "the header states {:016x}; the file is damaged",
                          path_, info.name, begin, begin + info.num_bytes, crc, *info.crc64);
  }
  verified_[index] = true;
}

at::Tensor TensorFile::read_range(std::size_t index, at::IntArrayRef shape, std::int64_t begin,
                                  std::int64_t end) const {
  const TensorInfo& info = tensors_[index];
  verify(index);
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(info.dtype));
  const auto elem_bytes = static_cast<std::int64_t>(tensor.element_size());
  read_bytes(data_offset_ + info.offset + begin * elem_bytes, tensor.data_ptr(), (end - begin) * elem_bytes);
  if (info.dtype == at::kBool) {  // a bool of any other byte value is undefined behaviour
    const auto* bytes = static_cast<const unsigned char*>(tensor.data_ptr());
    const auto* wrong = std::find_if(bytes, bytes + tensor.numel(), [](unsigned char byte) { return byte > 1; });
    ESPALIER_CHECK_CONFIG(wrong == bytes + tensor.numel(),
                          "{}: element {} of tensor '{}' is {}; expected 0 or 1 for dtype BOOL", path_,
                          begin + (wrong - bytes), info.name, static_cast<int>(*wrong));
  }
  return tensor;
}

}  // namespace espalier
