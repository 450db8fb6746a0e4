// SPDX-License-Identifier: Apache-2.0
// Private: the backend over MPI, for ranks that an MPI launcher has started. Two sources implement it: join.cpp, and
// its twin join_without_mpi.cpp where ESPALIER_WITH_MPI is off.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "espalier/base/log.hpp"
#include "espalier/comm/communicator.hpp"

namespace espalier::detail {

struct MpiOptions {
  std::chrono::milliseconds timeout{300'000};  // of connecting a group, of closing, and of waits without a deadline
  LogSink log = stderr_sink();                 // told what was lost when a world was closed
};

// All ranks of MPI_COMM_WORLD as a world, as this process sees it.
struct MpiWorld {
  std::int64_t rank = 0;
  std::int64_t size = 1;
  std::int64_t local_rank = 0;  // among those that share memory
  std::int64_t local_size = 1;
  std::vector<std::int64_t> host_of_rank =
      {};  // a number for each rank's host, in order of first appearance; empty: one host
  std::shared_ptr<Transport> transport;
};

bool has_mpi();

// ConfigError where this build is without MPI: which option to set.
void require_mpi();

// All ranks that MPI started must call; blocks until they do, at most for the time-out. Initialises MPI unless the
// program has (which waits for all ranks without a deadline), to be finalised when the process ends. ConfigError where
// this build is without MPI, or MPI cannot be called from the threads of a program.
MpiWorld join_mpi(const MpiOptions& options = {});

}  // namespace espalier::detail
