// SPDX-License-Identifier: Apache-2.0
// Private: the life of MPI in this process, which it has only once.
#pragma once

#include <functional>

namespace espalier::detail::mpi {

// Initialises MPI unless the program has. What is initialised here is finalised when the process ends with success;
// when it ends with another code it is not, since MPI would wait there for all other ranks: the launcher then ends
// them. Blocks until all ranks have come, without a deadline. ConfigError where MPI cannot be called from several
// threads.
void start_mpi();

// From now on the end of this process does not finalise MPI, which would wait for requests that nobody will answer.
void leave_mpi_unfinalised();

// Runs `body`, which calls MPI, on a thread that nobody waits for; false, without it, once MPI is finalised or the
// process ends, which waits for a body under way.
bool in_background(const std::function<void()>& body);

// Whether the program has finalised MPI: nothing of it may be called any more.
bool is_finalised();

}  // namespace espalier::detail::mpi
