// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace espalier::command {

struct Scalar {
  std::string_view tag;  // "train/loss"
  double value;          // kept as float32
};

// Scalars of a run as TensorBoard reads them: a file of its own in the run's folder for every start. Where a start goes
// on at an earlier step than the one before had reached, TensorBoard drops what is shown of later ones.
class EventFile {
 public:
  // Makes events.out.tfevents.TIME.HOST.PID in `folder`. ConfigError when it cannot be written; so for append.
  EventFile(const std::string& folder, std::int64_t first_step);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;
  ~EventFile();

  void append(std::int64_t step, std::span<const Scalar> scalars);

 private:
  void write_event(const std::string& event);

  std::string path_;
  int fd_ = -1;
};

}  // namespace espalier::command
