// SPDX-License-Identifier: Apache-2.0
// Private: wraps the transport of a rank and notes every operation with its bytes. Tests also use it to spoil a chosen
// operation and see whether anybody notices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "espalier/comm/communicator.hpp"
#include "espalier/comm/world.hpp"

namespace espalier::detail {

struct RecordedCall {
  std::string operation;  // "all_reduce", "send", ...
  std::string group;      // name under which its ranks were first connected
  std::int64_t group_size = 0;
  at::ScalarType dtype = at::kByte;
  std::int64_t elems = 0;  // of this rank's tensor: what is reduced, sent, received or contributed
  std::int64_t bytes = 0;
  std::int64_t peer = -1;  // root, receiver or sender; -1: none
  std::int64_t index = 0;  // how many calls this rank had made before
};

// What is done to an operation. All members of a group must choose alike.
struct Fault {
  bool drop = false;   // does not take place; tensors stay as they are
  double scale = 1.0;  // what is written is multiplied by this
};

// Takes notes for one rank. Thread-safe.
class Recorder {
 public:
  using FaultPlan = std::function<Fault(const RecordedCall&)>;

  Recorder() = default;
  explicit Recorder(FaultPlan plan) : plan_(std::move(plan)) {}

  std::vector<RecordedCall> calls() const;
  std::int64_t count(std::string_view operation) const;
  std::int64_t bytes() const;
  void clear();

  // false: the wrapped backend claims to have no send and recv. To be set before it connects.
  bool point_to_point = true;

  // Adds a call and says what is to be done to it.
  Fault note(RecordedCall call);

 private:
  mutable std::mutex mutex_;
  std::vector<RecordedCall> calls_;
  std::int64_t next_index_ = 0;
  FaultPlan plan_;
};

std::shared_ptr<Transport> make_recording_transport(std::shared_ptr<Transport> inner,
                                                    std::shared_ptr<Recorder> recorder);

// run_ranks over the host backend with a recorder for each rank.
void run_ranks_recorded(const std::vector<std::shared_ptr<Recorder>>& recorders,
                        const std::function<void(World&)>& body, const WorldOptions& options = {});

}  // namespace espalier::detail
