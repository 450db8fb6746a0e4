// SPDX-License-Identifier: Apache-2.0
// One rank of a trial, in a process of its own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "tests/chaos/trial.hpp"

namespace espalier::chaos {

inline constexpr std::size_t kMostRanks = 8;

// What ranks tell their judge: memory that their processes share.
struct Board {
  struct Entry {
    std::atomic<std::int64_t> ended_us{0};  // when it knew how it would end
    std::array<char, 3000> text{};          // its error, if any
    std::array<char, 1000> left{};          // what it still held of its world
  };
  std::atomic<std::int64_t> struck_us{0};
  std::array<Entry, kMostRanks> ranks;
};

// Where the ranks of a trial meet.
struct Meeting {
  std::string folder;  // empty at the start
  int listener = -1;   // a socket that listens at the port
  int port = 0;
};

// Where a rank's standard error goes.
std::string errors_file(const Meeting& meeting, std::int64_t rank);

// Exit codes are those of the command; besides: 5, a wrong result.
inline constexpr int kWrongResult = 5;
int run_rank(const Trial& trial, std::int64_t rank, const Meeting& meeting, Board& board);

}  // namespace espalier::chaos
