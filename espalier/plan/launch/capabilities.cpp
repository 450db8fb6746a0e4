// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/launch/capabilities.hpp"

#include "espalier/base/check.hpp"

namespace espalier {

Capabilities capabilities_of(std::string_view backend) {
  Capabilities can;
  if (backend == "host") return can;
  can.names_dead_ranks = false;
  can.names_different_calls = false;
  can.bfloat16_reductions = false;
  if (backend == "mpi") {
    can.mean_reductions = false;
    return can;
  }
  can.uneven_all_gather = false;
  can.int16_reductions = false;
  if (backend == "hierarchical") {
    can.mean_reductions = false;  // divided once, at the end
    return can;
  }
  ESPALIER_CHECK(backend == "gloo", "there are no capabilities of a backend '{}'", backend);
  return can;
}

const std::vector<CapabilityRow>& capability_rows() {
  static const std::vector<CapabilityRow> rows{
      {"send and recv", &Capabilities::point_to_point, "broadcasts between pairs"},
      {"all_gather_v", &Capabilities::uneven_all_gather, "emulated: padded to the largest"},
      {"int16 reductions", &Capabilities::int16_reductions, "emulated: in int32"},
      {"bfloat16 reductions", &Capabilities::bfloat16_reductions, "emulated: in float32"},
      {"mean", &Capabilities::mean_reductions, "emulated: sum, then divided"},
      {"sends are buffered", &Capabilities::buffered_sends, "leave while the sender is in a call"},
      {"names dead ranks", &Capabilities::names_dead_ranks, "at the deadline, or where it notices"},
      {"finds different calls", &Capabilities::names_different_calls, "with ESPALIER_CHECK_CALLS=1"},
  };
  return rows;
}

bool mpi_spans_hosts(const RankEnvironment& found) {
  return (found.launcher == Launcher::open_mpi || found.launcher == Launcher::mpich) && !found.master_address &&
         found.local_world_size && found.local_world_size->value < found.world_size.value;
}

BackendChoice expected_backend(const RankEnvironment& found, const Variables& variables, bool has_mpi) {
  const auto asked = variables.find("ESPALIER_BACKEND");
  if (asked != variables.end() && !asked->second.empty()) return {asked->second, "ESPALIER_BACKEND says so"};
  if (found.world_size.value == 1) return {"none", "a world of one talks to nobody"};
  if (has_mpi && mpi_spans_hosts(found))
    return {"mpi", fmt::format("{} started the ranks on several hosts", to_string(found.launcher))};
  if (!found.local_world_size)
    return {"host, hierarchical or gloo",
            "host if all ranks share a host, else hierarchical if some do; they find out when they meet"};
  if (found.local_world_size->value == found.world_size.value)
    return {"host", fmt::format("all {} ranks are on this host, says {}; gloo if they may not share memory",
                                found.world_size.value, found.local_world_size->variable)};
  return {"hierarchical or gloo",
          fmt::format("{} of {} ranks are on this host, says {}; gloo if each has a host of its own",
                      found.local_world_size->value, found.world_size.value, found.local_world_size->variable)};
}

}  // namespace espalier
