// SPDX-License-Identifier: Apache-2.0
// One rank's part of a program: begins its operations, waits for them in an order of its own, compares every result.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"
#include "tests/chaos/program.hpp"

namespace espalier::chaos {

// A result is not what it must be.
class WrongResult : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Player {
 public:
  // Waits end with a CommError after `patience`.
  Player(const Program& program, const World& world, std::chrono::milliseconds patience);

  // Begins this step, number `number` of all, if the rank takes part, and perhaps waits for some that were begun.
  void play(const Step& step, std::size_t number);
  // Waits for all that were begun; at a rest of the program.
  void finish();
  // Steps this rank took part in.
  std::int64_t num_played() const { return num_played_; }

 private:
  struct Pending {
    Step step;
    Work work;
    std::vector<at::Tensor> outputs;
  };

  Group& group(std::size_t index);
  void begin(const Step& step);
  void wait(std::size_t which);

  const Program& program_;
  const World& world_;
  const std::chrono::milliseconds patience_;
  Random random_;
  std::vector<Group> groups_;  // made at their first use
  std::vector<Pending> pending_;
  std::int64_t num_played_ = 0;
};

}  // namespace espalier::chaos
