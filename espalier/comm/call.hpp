// SPDX-License-Identifier: Apache-2.0
// Private: what a rank has called, small enough to travel in every message so that ranks that disagree notice at once.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "espalier/comm/collectives.hpp"

namespace espalier::detail {

enum class CallKind : std::uint8_t {
  none,
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  all_gather_v,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  barrier,
  send,
  recv,
};

// What all members of a group must agree on. `count` is in elements, or kAnyCount where members may differ.
struct Call {
  static constexpr std::int64_t kAnyCount = -1;

  CallKind kind = CallKind::none;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  ReduceOp reduce = ReduceOp::sum;
  std::int32_t root = 0;
  std::int64_t count = 0;

  friend bool operator==(const Call&, const Call&) = default;
};

// "all_reduce(sum, float32 x 1024)", "broadcast(float32 x 10, root 2)", "barrier()".
std::string to_string(const Call& call);

}  // namespace espalier::detail
