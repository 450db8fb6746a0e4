// SPDX-License-Identifier: Apache-2.0
// Private: the words for dtypes and reductions in messages.
#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

#include "espalier/comm/collectives.hpp"

namespace espalier::detail {

// "float32", "bfloat16", ...; "unsupported dtype" for what the collectives do not move.
std::string_view dtype_name(c10::ScalarType dtype);
// Whether the collectives move tensors of this dtype.
bool dtype_supported(c10::ScalarType dtype);
// "sum", "mean", ...
std::string_view to_string(ReduceOp op);

}  // namespace espalier::detail
