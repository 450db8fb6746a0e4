// SPDX-License-Identifier: Apache-2.0
// Private: starting the ranks of one world, on this host, and ending them.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "espalier/plan/launch/environment.hpp"

namespace espalier {

struct LaunchOptions {
  std::vector<std::string> command;  // program (looked for in PATH) and its arguments
  std::int64_t num_ranks = 1;
  std::string speaker = "espalier run";      // who complains when a rank fails
  Variables variables = {};                  // set in every rank, on top of this process's
  std::set<int> explained_codes = {};        // exit codes that come with a text of the rank's own: none is added
  std::chrono::milliseconds stop_time{800};  // after a signal to this process, from SIGTERM to SIGKILL
};

// Runs the command as num_ranks processes and blocks until all have ended. Their output is passed
// on in whole lines; rank 0 reads this process's standard input unless it is a terminal, the others
// read nothing. When a rank fails, the others get half a second to notice by themselves, then
// SIGTERM, then SIGKILL; all are gone within 2 seconds. After SIGINT, SIGTERM, SIGHUP or SIGQUIT to
// this process they get SIGTERM and `stop_time`; a second such signal ends them at once, and so does
// SIGKILL to it: nothing that a rank started outlives the launch. Call it while this process has one
// thread and no children.
//
// Returns 0 when all ranks did, else the exit code of the rank that failed first, or 128 + n for a
// signal n that ended it or this process. ConfigError if the program cannot be started.
int launch_ranks(const LaunchOptions& options);

// A name that no other launch has.
std::string make_job_name();

}  // namespace espalier
