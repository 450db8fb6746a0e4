// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/instruction.hpp"

namespace espalier {

std::string_view code(Op op) {
  switch (op) {
    case Op::load:
      return "Ld";
    case Op::forward:
      return "F";
    case Op::backward:
      return "B";
    case Op::send_activation:
      return "SA";
    case Op::recv_activation:
      return "RA";
    case Op::send_grad:
      return "SG";
    case Op::recv_grad:
      return "RG";
    case Op::reduce_tied_grads:
      return "RT";
    case Op::reduce_grads:
      return "RD";
    case Op::optimizer_step:
      return "OS";
  }
  return "?";  // not an Op: the checker reports it
}

bool has_micro_batch(Op op) {
  return op != Op::reduce_tied_grads && op != Op::reduce_grads && op != Op::optimizer_step;
}

}  // namespace espalier
