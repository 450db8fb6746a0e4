// SPDX-License-Identifier: Apache-2.0
// What is there of the backend mpi in a build without MPI: how to get one with it.
#include "espalier/base/error.hpp"
#include "espalier/comm/backends/mpi/mpi.hpp"

namespace espalier::detail {

bool has_mpi() { return false; }

void require_mpi() {
  throw ConfigError(
      "backend mpi: this build of Espalier is without MPI; configure it with -DESPALIER_WITH_MPI=ON (scripts/setup installs "
      "Open MPI), or choose host or gloo");
}

MpiWorld join_mpi(const MpiOptions&) {
  require_mpi();
  return {};
}

}  // namespace espalier::detail
