// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/mpi/lifetime.hpp"

#include <mpi.h>
#include <stdlib.h>

#include <atomic>
#include <mutex>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/mpi/session.hpp"

namespace espalier::detail::mpi {
namespace {

// State of the process, as MPI's own is.
constinit std::atomic<bool> stays_unfinalised = false;
constinit std::mutex background_mutex;
constinit bool ending = false;  // guarded by it
constinit std::once_flag end_is_watched;

void end_background(int, void*) {
  const std::lock_guard lock(background_mutex);
  ending = true;
}

void finalise_at_exit(int exit_code, void*) {
  if (is_finalised() || stays_unfinalised) return;
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (exit_code == 0 || size == 1) MPI_Finalize();
}

}  // namespace

bool is_finalised() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

bool in_background(const std::function<void()>& body) {
  const std::lock_guard lock(background_mutex);
  if (ending || is_finalised()) return false;
  body();
  return true;
}

void leave_mpi_unfinalised() { stays_unfinalised = true; }

void start_mpi() {
  ESPALIER_CHECK_CONFIG(!is_finalised(), "backend mpi: the program has called MPI_Finalize; make the world before it");
  int was_initialised = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&was_initialised);
  if (was_initialised != 0) {
    checked(MPI_Query_thread(&level), "MPI_Query_thread");
  } else {
    checked(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    ::on_exit(finalise_at_exit, nullptr);
  }
  std::call_once(end_is_watched, [] { ::on_exit(end_background, nullptr); });  // comes first, as registered last
  ESPALIER_CHECK_CONFIG(level == MPI_THREAD_MULTIPLE,
                        "backend mpi: MPI runs with thread level {}, but worlds need MPI_THREAD_MULTIPLE ({}); {}",
                        level, static_cast<int>(MPI_THREAD_MULTIPLE),
                        was_initialised != 0
                            ? "initialise it with MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...), or leave it "
                              "to the world"
                            : "use an MPI that is built with it");
}

}  // namespace espalier::detail::mpi
