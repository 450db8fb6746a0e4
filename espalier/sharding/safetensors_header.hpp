// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file, as text and as values.
#pragma once

#include <string>
#include <vector>

#include "espalier/sharding/tensor_file.hpp"

namespace espalier {

inline constexpr std::int64_t kSafetensorsLengthBytes = 8;               // the header's length, in front of it
inline constexpr std::int64_t kSafetensorsMaxHeaderBytes = 100'000'000;  // as other readers of the format have it
inline constexpr std::string_view kSafetensorsDamaged = "the file is damaged or not a safetensors file";

struct SafetensorsHeader {
  StringMap metadata;               // the user's part
  std::vector<TensorInfo> tensors;  // in the order of their data
};

// The number of bytes of one element; ConfigError, naming file and tensor, for a dtype the format
// does not have here.
std::int64_t safetensors_elem_bytes(const std::string& path, const std::string& tensor, at::ScalarType dtype);

// The text, padded to a multiple of 8 bytes, with all checksums (every tensor must have its own).
// Its length does not depend on the checksums' values. ConfigError, naming `path`, for names and
// metadata that a header cannot hold.
std::string format_safetensors_header(const std::string& path, const SafetensorsHeader& header);

// ConfigError, naming `path`, unless the text is sound, its checksum right (missing: as `checksums`
// says) and the tensors fill `data_bytes` without overlap or gap.
SafetensorsHeader parse_safetensors_header(const std::string& path, const std::string& text, std::int64_t data_bytes,
                                           Checksums checksums);

}  // namespace espalier
