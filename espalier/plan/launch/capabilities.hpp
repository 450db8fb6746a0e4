// SPDX-License-Identifier: Apache-2.0
// What each backend does by itself, and which one ranks take.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/launch/environment.hpp"

namespace espalier {

// What a group's backend does by itself. What it lacks, the collectives emulate, or nobody does.
struct Capabilities {
  bool point_to_point = true;     // send and recv
  bool uneven_all_gather = true;  // all_gather_v without padding
  bool int16_reductions = true;
  bool bfloat16_reductions = true;
  bool mean_reductions = true;        // ReduceOp::mean, as the sum rounded to the dtype and then divided
  bool buffered_sends = true;         // a posted send arrives whatever its sender does next
  bool names_dead_ranks = true;       // the death of a process is noticed and named at once
  bool names_different_calls = true;  // ranks that call different collectives learn it at once
};

// Of "host", "hierarchical" (its groups that span hosts), "gloo" (also other backends of c10d) or "mpi".
Capabilities capabilities_of(std::string_view backend);

// One capability of all backends, for people: what it is, and where a backend lacks it what happens instead.
struct CapabilityRow {
  std::string_view what;
  bool Capabilities::* has;
  std::string_view otherwise;
};
const std::vector<CapabilityRow>& capability_rows();

// The backend that World::from_environment takes in this environment, and why, as far as one process can know.
struct BackendChoice {
  std::string backend;  // "host", ...; "none" for a world of one; alternatives joined with " or "
  std::string why;
};
BackendChoice expected_backend(const RankEnvironment& found, const Variables& variables, bool has_mpi);

// Whether an MPI launcher started ranks on several hosts, which then talk over MPI unless they are told otherwise.
bool mpi_spans_hosts(const RankEnvironment& found);

}  // namespace espalier
