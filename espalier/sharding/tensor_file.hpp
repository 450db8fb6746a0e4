// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

using StringMap = std::map<std::string, std::string>;

// Writes a safetensors file: `tensors` in the given order (F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL;
// any strides, device and shape) and `metadata`. Any safetensors reader understands it. The
// metadata gains CRC-64/XZ checksums: "crc64.NAME" of each tensor's bytes and "header_crc64" of the
// header. All or nothing: the file is written under "PATH.<pid>.<n>.tmp", flushed to disk and
// renamed; the folder is flushed too. On failure an older file of that name is untouched and the
// temporary one removed. ConfigError, with path and reason, when the folder cannot be written or
// the disk is full, and for repeated names, reserved metadata keys, undefined tensors and other
// dtypes.
void write_tensor_file(const std::string& path, std::span<const NamedTensor> tensors, const StringMap& metadata = {});

// What to do about a file without Espalier's checksums: refuse it, or trust it (files from other
// programs).
enum class Checksums { required, if_present };

// What the header says of one tensor.
struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<std::int64_t> shape;
  std::int64_t num_elems = 0;
  std::int64_t num_bytes = 0;
  std::int64_t offset = 0;             // of its first byte, counted from the end of the header
  std::optional<std::uint64_t> crc64;  // none in files of other programs
};

// A safetensors file open for reading. Opening checks the header and its checksum: every length,
// dtype, shape and offset, against each other and the file's size. A tensor's own checksum is
// verified the first time it is read, whole or in part. Damage is a ConfigError that says what is
// wrong and at which byte. Takes no memory beyond the header and the result (1 MiB where only a
// part is wanted). Not for two threads at once.
class TensorFile {
 public:
  explicit TensorFile(std::string path, Checksums checksums = Checksums::required);

  const std::string& path() const { return path_; }
  const StringMap& metadata() const { return metadata_; }              // as given to write_tensor_file
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their data
  bool contains(std::string_view name) const { return index_.contains(name); }
  // ConfigError, with the names there are, when there is none of this name; so do the next two.
  const TensorInfo& info(std::string_view name) const { return tensors_[index_of(name)]; }

  // A new CPU tensor.
  at::Tensor read(std::string_view name) const;
  // Elements [begin, end) of the flattened tensor, as a new 1-d CPU tensor. ConfigError when out of
  // range.
  at::Tensor read_elems(std::string_view name, std::int64_t begin, std::int64_t end) const;
  // Verifies the checksums of all tensors.
  void verify() const;

 private:
  class Descriptor {
   public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&&) = delete;
    int number() const { return number_; }

   private:
    int number_;
  };

  std::size_t index_of(std::string_view name) const;
  void read_bytes(std::int64_t offset, void* to, std::int64_t num_bytes) const;
  void verify(std::size_t index) const;
  at::Tensor read_range(std::size_t index, at::IntArrayRef shape, std::int64_t begin, std::int64_t end) const;

  std::string path_;
  Descriptor file_;
  std::int64_t data_offset_ = 0;  // of the first tensor byte in the file
  StringMap metadata_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  mutable std::vector<bool> verified_;
};

}  // namespace espalier
