// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes of header length N (little-endian), N bytes of JSON padded with
// spaces, then the tensors' bytes without gaps:
//
//   {"__metadata__": {string: string},
//    NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//
// Offsets count from the end of the header. Espalier keeps its checksums in the metadata:
// "crc64.NAME" of the bytes of a tensor, and "header_crc64" of everything before the data, its own
// 16 digits taken as zeros.
#include "espalier/sharding/safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "espalier/base/check.hpp"
#include "espalier/base/crc64.hpp"

namespace espalier {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kHeaderKey = "header_crc64";
constexpr std::string_view kTensorPrefix = "crc64.";
// Where the header's checksum begins; inside a JSON string its quotes would have backslashes.
constexpr std::string_view kHeaderField = "\"header_crc64\":\"";
constexpr std::size_t kDigits = 16;

struct Dtype {
  std::string_view name;
  at::ScalarType type;
  std::int64_t elem_bytes;
};

constexpr std::array kDtypes = {
    Dtype{"F64", at::kDouble, 8},    Dtype{"F32", at::kFloat, 4}, Dtype{"F16", at::kHalf, 2},
    Dtype{"BF16", at::kBFloat16, 2}, Dtype{"I64", at::kLong, 8},  Dtype{"I32", at::kInt, 4},
    Dtype{"I16", at::kShort, 2},     Dtype{"I8", at::kChar, 1},   Dtype{"U8", at::kByte, 1},
    Dtype{"BOOL", at::kBool, 1},
};

std::string dtype_names() {
  std::vector<std::string_view> names;
  for (const Dtype& dtype : kDtypes) names.push_back(dtype.name);
  return fmt::format("{}", fmt::join(names, " "));
}

const Dtype& find_dtype(const std::string& path, const std::string& tensor, at::ScalarType type) {
  const auto* found = std::ranges::find(kDtypes, type, &Dtype::type);
  ESPALIER_CHECK_CONFIG(found != kDtypes.end(), "{}: tensor '{}' has dtype {}; expected one of {}", path, tensor,
                        at::toString(type), dtype_names());
  return *found;
}

std::string hex(std::uint64_t crc) { return fmt::format("{:016x}", crc); }

// Exactly what hex() gives: other spellings of the same number are damage.
std::optional<std::uint64_t> parse_hex(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return hex(value) == text ? std::optional(value) : std::nullopt;
}

// CRC of length and text, the digits of its own checksum (at `digits`) as zeros.
std::uint64_t header_crc(std::string text, std::size_t digits) {
  static_assert(std::endian::native == std::endian::little);
  text.replace(digits, kDigits, kDigits, '0');
  const std::uint64_t length = text.size();
  return crc64(crc64(0, &length, sizeof length), text.data(), text.size());
}

void check_header_crc(const std::string& path, const std::string& text, Checksums checksums) {
  const std::size_t field = text.find(kHeaderField);
  if (field == std::string::npos) {
    ESPALIER_CHECK_CONFIG(checksums == Checksums::if_present,
                          "{}: the header has no checksum ('{}'); expected a file written by "
                          "Espalier; it is damaged or "
                          "comes from another program (then read it with Checksums::if_present)",
                          path, kHeaderKey);
    return;
  }
  const std::size_t digits = field + kHeaderField.size();
  const auto stated = parse_hex(text.substr(digits, kDigits));
  ESPALIER_CHECK_CONFIG(stated.has_value(),
                        "{}: byte {}: the header's checksum is not 16 lower-case hexadecimal "
                        "digits; the file is damaged",
                        path, kSafetensorsLengthBytes + static_cast<std::int64_t>(digits));
  const std::uint64_t actual = header_crc(text, digits);
  ESPALIER_CHECK_CONFIG(actual == *stated,
                        "{}: the header (bytes 0 to {}) has CRC-64 {}, but states {}; the file is damaged", path,
                        kSafetensorsLengthBytes + static_cast<std::int64_t>(text.size()), hex(actual), hex(*stated));
}

// Refuses equal keys: nlohmann-json keeps the last, other readers the first.
Json parse_json(const std::string& path, const std::string& text) {
  std::vector<std::set<std::string>> open_objects;
  std::optional<std::string> repeated;
  const auto watch_keys = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key && !open_objects.back().insert(value.get<std::string>()).second)
      repeated = value;
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, watch_keys);
  } catch (const Json::exception& error) {
    throw ConfigError(fmt::format("{}: the header (from byte {}) is not JSON: {}; {}", path, kSafetensorsLengthBytes,
                                  error.what(), kSafetensorsDamaged));
  }
  ESPALIER_CHECK_CONFIG(!repeated, "{}: the header has the key '{}' twice; {}", path, *repeated, kSafetensorsDamaged);
  ESPALIER_CHECK_CONFIG(json.is_object(), "{}: the header is not a JSON object; {}", path, kSafetensorsDamaged);
  return json;
}

StringMap parse_metadata(const std::string& path, const Json& json) {
  ESPALIER_CHECK_CONFIG(json.is_object(), "{}: '{}' is not a JSON object; {}", path, kMetadata, kSafetensorsDamaged);
  StringMap metadata;
  for (const auto& [key, value] : json.items()) {
    ESPALIER_CHECK_CONFIG(value.is_string(), "{}: metadata '{}' is not a string; {}", path, key, kSafetensorsDamaged);
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// A list of integers from 0 to 2^63 - 1.
std::optional<std::vector<std::int64_t>> parse_counts(const Json& object, const char* key) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return std::nullopt;
  std::vector<std::int64_t> counts;
  for (const Json& item : *list) {
    if (!item.is_number_unsigned()) return std::nullopt;
    const auto value = item.get<std::uint64_t>();
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    counts.push_back(static_cast<std::int64_t>(value));
  }
  return counts;
}

// The product, unless it (zeros taken as ones, as strides are computed) times `elem_bytes` passes
// 2^63.
std::optional<std::int64_t> count_elems(const std::vector<std::int64_t>& shape, std::int64_t elem_bytes) {
  std::int64_t bound = elem_bytes;
  std::int64_t num_elems = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bound, std::max<std::int64_t>(size, 1), &bound)) return std::nullopt;
    num_elems *= size;
  }
  return num_elems;
}

TensorInfo parse_tensor(const std::string& path, const std::string& name, const Json& json) {
  ESPALIER_CHECK_CONFIG(json.is_object(), "{}: the entry of tensor '{}' is not a JSON object; {}", path, name,
                        kSafetensorsDamaged);
  const auto dtype_json = json.find("dtype");
  ESPALIER_CHECK_CONFIG(dtype_json != json.end() && dtype_json->is_string(), "{}: tensor '{}' has no dtype; {}", path,
                        name, kSafetensorsDamaged);
  const auto dtype_name = dtype_json->get<std::string>();
  const auto* dtype = std::ranges::find(kDtypes, dtype_name, &Dtype::name);
  ESPALIER_CHECK_CONFIG(dtype != kDtypes.end(), "{}: tensor '{}' has dtype '{}'; expected one of {}", path, name,
                        dtype_name, dtype_names());

  const auto shape = parse_counts(json, "shape");
  ESPALIER_CHECK_CONFIG(shape.has_value(), "{}: the shape of tensor '{}' is not a list of sizes; {}", path, name,
                        kSafetensorsDamaged);
  const auto num_elems = count_elems(*shape, dtype->elem_bytes);
  ESPALIER_CHECK_CONFIG(num_elems.has_value(), "{}: the shape [{}] of tensor '{}' takes more than 2^63 bytes; {}", path,
                        fmt::join(*shape, ", "), name, kSafetensorsDamaged);

  const auto offsets = parse_counts(json, "data_offsets");
  ESPALIER_CHECK_CONFIG(offsets.has_value() && offsets->size() == 2 && (*offsets)[0] <= (*offsets)[1],
                        "{}: the data_offsets of tensor '{}' are not two ascending numbers; {}", path, name,
                        kSafetensorsDamaged);
  const std::int64_t num_bytes = *num_elems * dtype->elem_bytes;
  ESPALIER_CHECK_CONFIG((*offsets)[1] - (*offsets)[0] == num_bytes,
                        "{}: tensor '{}' of shape [{}] and dtype {} takes {} bytes, but its "
                        "data_offsets {} to {} hold {}; {}",
                        path, name, fmt::join(*shape, ", "), dtype->name, num_bytes, (*offsets)[0], (*offsets)[1],
                        (*offsets)[1] - (*offsets)[0], kSafetensorsDamaged);
  return {.name = name,
          .dtype = dtype->type,
          .shape = *shape,
          .num_elems = *num_elems,
          .num_bytes = num_bytes,
          .offset = (*offsets)[0],
          .crc64 = std::nullopt};
}

void sort_and_check_offsets(const std::string& path, std::vector<TensorInfo>& tensors, std::int64_t data_bytes) {
  std::ranges::sort(tensors, {}, [](const TensorInfo& info) { return std::pair(info.offset, info.num_bytes); });
  std::int64_t end = 0;
  for (const TensorInfo& info : tensors) {
    ESPALIER_CHECK_CONFIG(info.offset >= end,
                          "{}: tensor '{}' begins at byte {} of the data, inside the one before "
                          "it, which ends at {}; {}",
                          path, info.name, info.offset, end, kSafetensorsDamaged);
    ESPALIER_CHECK_CONFIG(info.offset == end,
                          "{}: bytes {} to {} of the data, before tensor '{}', belong to no tensor; {}", path, end,
                          info.offset, info.name, kSafetensorsDamaged);
    end = info.offset + info.num_bytes;
    ESPALIER_CHECK_CONFIG(end <= data_bytes,
                          "{}: tensor '{}' ends at byte {} of the data, but there are {}; the file "
                          "was cut short or is damaged",
                          path, info.name, end, data_bytes);
  }
  ESPALIER_CHECK_CONFIG(end == data_bytes, "{}: the tensors end at byte {} of the data, but there are {}; {}", path,
                        end, data_bytes, kSafetensorsDamaged);
}

// Moves the checksums from the metadata to the tensors.
void take_checksums(const std::string& path, SafetensorsHeader& header) {
  if (header.metadata.erase(std::string(kHeaderKey)) == 0) return;
  for (TensorInfo& info : header.tensors) {
    const auto found = header.metadata.find(fmt::format("{}{}", kTensorPrefix, info.name));
    if (found != header.metadata.end()) {
      info.crc64 = parse_hex(found->second);
      header.metadata.erase(found);
    }
    ESPALIER_CHECK_CONFIG(info.crc64.has_value(), "{}: the header has no checksum of tensor '{}'; {}", path, info.name,
                          kSafetensorsDamaged);
  }
}

}  // namespace

std::int64_t safetensors_elem_bytes(const std::string& path, const std::string& tensor, at::ScalarType dtype) {
  return find_dtype(path, tensor, dtype).elem_bytes;
}

std::string format_safetensors_header(const std::string& path, const SafetensorsHeader& header) {
  OrderedJson metadata = OrderedJson::object();
  OrderedJson json = OrderedJson::object();
  metadata[kHeaderKey] = std::string(kDigits, '0');
  json[kMetadata] = nullptr;  // comes first
  for (const TensorInfo& info : header.tensors) {
    ESPALIER_CHECK_CONFIG(
        !json.contains(info.name), "{}: the tensor name '{}' is {}", path, info.name,
        info.name == kMetadata ? "reserved by the format; choose another" : "given twice; expected distinct names");
    metadata[fmt::format("{}{}", kTensorPrefix, info.name)] = hex(info.crc64.value());
    json[info.name] = {{"dtype", find_dtype(path, info.name, info.dtype).name},
                       {"shape", info.shape},
                       {"data_offsets", {info.offset, info.offset + info.num_bytes}}};
  }
  for (const auto& [key, value] : header.metadata) {
    ESPALIER_CHECK_CONFIG(key != kHeaderKey && !key.starts_with(kTensorPrefix),
                          "{}: the metadata key '{}' is reserved for checksums; choose another", path, key);
    metadata[key] = value;
  }
  json[kMetadata] = std::move(metadata);

  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception& error) {
    throw ConfigError(fmt::format("{}: a tensor name or metadata text is not UTF-8: {}", path, error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  ESPALIER_CHECK_CONFIG(static_cast<std::int64_t>(text.size()) <= kSafetensorsMaxHeaderBytes,
                        "{}: the header takes {} bytes; expected at most {}; write several files", path, text.size(),
                        kSafetensorsMaxHeaderBytes);
  const std::size_t digits = text.find(kHeaderField) + kHeaderField.size();
  return text.replace(digits, kDigits, hex(header_crc(text, digits)));
}

SafetensorsHeader parse_safetensors_header(const std::string& path, const std::string& text, std::int64_t data_bytes,
                                           Checksums checksums) {
  check_header_crc(path, text, checksums);
  SafetensorsHeader header;
  const Json json = parse_json(path, text);
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadata) {
      header.metadata = parse_metadata(path, value);
    } else {
      header.tensors.push_back(parse_tensor(path, name, value));
    }
  }
  sort_and_check_offsets(path, header.tensors, data_bytes);
  take_checksums(path, header);
  return header;
}

}  // namespace espalier
