// SPDX-License-Identifier: Apache-2.0
// Starts this test program again as the ranks of a world, each a process of its own that runs one named body.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "tests/support/temporary_folder.hpp"

namespace espalier::testing_support {

// What a process was started for; nullopt in the test itself.
struct RankProcess {
  std::string body;
  std::int64_t rank = 0;
  std::int64_t size = 1;
  std::filesystem::path folder;  // shared by the ranks, empty at the start
};
std::optional<RankProcess> this_rank_process();

struct Outcome {
  std::vector<pid_t> pids;
  std::vector<int> statuses;                // as from waitpid; -1: had to be killed at the time limit
  std::vector<std::string> outputs;         // standard output and error of each rank
  std::unique_ptr<TemporaryFolder> shared;  // of the ranks
};

// Runs `size` ranks of `body` and waits for all of them.
Outcome run_processes(const std::string& body, std::int64_t size, std::chrono::milliseconds time_limit);

}  // namespace espalier::testing_support
