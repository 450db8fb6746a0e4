// SPDX-License-Identifier: Apache-2.0
// The file is a TFRecord of protobuf messages. A record: its length (8 bytes), the masked CRC-32C of these, the message,
// the masked CRC-32C of that. A message: fields, each a key (number * 8 + wire type) and a value. What is used of them:
//   Event      1 wall_time (double)  2 step (int64)  3 file_version (string)  5 summary (Summary)  7 session_log
//   Summary    1 value (repeated)      Value  1 tag (string)  2 simple_value (float)
//   SessionLog 1 status (enum: START is 1)
#include "apps/espalier_train/event_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "espalier/base/check.hpp"
#include "espalier/base/host_name.hpp"

namespace espalier::command {
namespace {

static_assert(std::endian::native == std::endian::little);

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      table[byte] = byte;
      for (int bit = 0; bit < 8; ++bit) table[byte] = (table[byte] >> 1) ^ ((table[byte] & 1) != 0 ? 0x82F63B78 : 0);
    }
    return table;
  }();
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

template <class Value>
std::string bytes_of(Value value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string masked_crc(std::string_view bytes) { return bytes_of(std::rotr(crc32c(bytes), 15) + 0xA282EAD8); }

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

enum class Wire : std::uint64_t { varint = 0, fixed64 = 1, length = 2, fixed32 = 5 };

std::string key(std::uint64_t number, Wire wire) { return varint(number * 8 + static_cast<std::uint64_t>(wire)); }
std::string whole(std::uint64_t number, std::int64_t value) {
  return key(number, Wire::varint) + varint(static_cast<std::uint64_t>(value));
}
std::string nested(std::uint64_t number, std::string_view bytes) {
  return key(number, Wire::length) + varint(bytes.size()) + std::string(bytes);
}

std::chrono::duration<double> now() { return std::chrono::system_clock::now().time_since_epoch(); }

std::string at_this_time() { return key(1, Wire::fixed64) + bytes_of(now().count()); }

}  // namespace

EventFile::EventFile(const std::string& folder, std::int64_t first_step)
    : path_((std::filesystem::path(folder) /
             fmt::format("events.out.tfevents.{:.0f}.{}.{}", now().count(), host_name(), getpid()))
                .string()) {
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  ESPALIER_CHECK_CONFIG(fd_ >= 0, "{}: cannot make the file: {}", path_, std::system_category().message(errno));
  write_event(at_this_time() + nested(3, "brain.Event:2"));
  constexpr std::int64_t kStart = 1;
  write_event(at_this_time() + whole(2, first_step) + nested(7, whole(1, kStart)));
}

EventFile::~EventFile() {
  if (fd_ >= 0) close(fd_);
}

void EventFile::append(std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += nested(1, nested(1, tag) + key(2, Wire::fixed32) + bytes_of(static_cast<float>(value)));
  write_event(at_this_time() + whole(2, step) + nested(5, summary));
}

// With one write, so that a killed run leaves at most one torn record, at the end.
void EventFile::write_event(const std::string& event) {
  const std::string length = bytes_of(static_cast<std::uint64_t>(event.size()));
  const std::string record = length + masked_crc(length) + event + masked_crc(event);
  const ssize_t written = write(fd_, record.data(), record.size());
  ESPALIER_CHECK_CONFIG(written == static_cast<ssize_t>(record.size()),
                        "{}: cannot write to the file: {}; expected a disk with room", path_,
                        std::system_category().message(written < 0 ? errno : ENOSPC));
}

}  // namespace espalier::command
