// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/names.hpp"

namespace espalier::detail {

std::string_view dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Int:
      return "int32";
    case c10::ScalarType::Short:
      return "int16";
    case c10::ScalarType::Char:
      return "int8";
    case c10::ScalarType::Byte:
      return "uint8";
    case c10::ScalarType::Bool:
      return "bool";
    default:
      return "unsupported dtype";  // LibTorch's list grows
  }
}

bool dtype_supported(c10::ScalarType dtype) { return dtype_name(dtype) != "unsupported dtype"; }

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::mean:
      return "mean";
    case ReduceOp::product:
      return "product";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::bit_and:
      return "bit_and";
    case ReduceOp::bit_or:
      return "bit_or";
    case ReduceOp::bit_xor:
      return "bit_xor";
  }
  return "?";
}

}  // namespace espalier::detail
