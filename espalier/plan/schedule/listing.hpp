// SPDX-License-Identifier: Apache-2.0
// Private: a stage's instructions in one line, each with its step.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/plan/schedule/instruction.hpp"

namespace espalier {

struct Placed {
  Instruction instruction;
  std::int64_t step;
};

inline std::vector<Placed> in_one_line(const StageProgram& program) {
  std::vector<Placed> line;
  for (std::size_t step = 0; step < program.steps.size(); ++step)
    for (const Instruction& instruction : program.steps[step])
      line.push_back({.instruction = instruction, .step = static_cast<std::int64_t>(step)});
  return line;
}

// Of a send or receive: which way it looks, and what the other end has to do.
struct Link {
  std::int64_t neighbour;  // +1 next stage, -1 previous stage, 0: not a message
  Op other_end;
};

inline Link link(Op op) {
  switch (op) {
    case Op::send_activation:
      return {+1, Op::recv_activation};
    case Op::recv_activation:
      return {-1, Op::send_activation};
    case Op::send_grad:
      return {-1, Op::recv_grad};
    case Op::recv_grad:
      return {+1, Op::send_grad};
    case Op::load:
    case Op::forward:
    case Op::backward:
    case Op::reduce_tied_grads:
    case Op::reduce_grads:
    case Op::optimizer_step:
      break;
  }
  return {0, op};
}

}  // namespace espalier
