// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/call.hpp"

#include <fmt/format.h>

#include "espalier/comm/names.hpp"

namespace espalier::detail {
namespace {

std::string_view kind_name(CallKind kind) {
  switch (kind) {
    case CallKind::none:
      return "nothing";
    case CallKind::all_reduce:
      return "all_reduce";
    case CallKind::reduce:
      return "reduce";
    case CallKind::broadcast:
      return "broadcast";
    case CallKind::all_gather:
      return "all_gather";
    case CallKind::all_gather_v:
      return "all_gather_v";
    case CallKind::gather:
      return "gather";
    case CallKind::scatter:
      return "scatter";
    case CallKind::reduce_scatter:
      return "reduce_scatter";
    case CallKind::all_to_all:
      return "all_to_all";
    case CallKind::barrier:
      return "barrier";
    case CallKind::send:
      return "send";
    case CallKind::recv:
      return "recv";
  }
  return "?";
}

}  // namespace

std::string to_string(const Call& call) {
  const std::string_view name = kind_name(call.kind);
  if (call.kind == CallKind::none) return std::string(name);
  if (call.kind == CallKind::barrier) return "barrier()";
  const std::string what = call.count == Call::kAnyCount ? std::string(dtype_name(call.dtype))
                                                         : fmt::format("{} x {}", dtype_name(call.dtype), call.count);
  switch (call.kind) {
    case CallKind::all_reduce:
    case CallKind::reduce_scatter:
      return fmt::format("{}({}, {})", name, to_string(call.reduce), what);
    case CallKind::reduce:
      return fmt::format("{}({}, {}, root {})", name, to_string(call.reduce), what, call.root);
    case CallKind::broadcast:
    case CallKind::gather:
    case CallKind::scatter:
      return fmt::format("{}({}, root {})", name, what, call.root);
    default:
      return fmt::format("{}({})", name, what);
  }
}

}  // namespace espalier::detail
