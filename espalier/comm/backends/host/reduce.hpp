// SPDX-License-Identifier: Apache-2.0
// Private: the arithmetic of reductions.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "espalier/comm/collectives.hpp"

namespace espalier::detail::host {

// out[k] (and that of each of `also`) = sources[0][k] op sources[1][k] op ..., in this order, for `count` elements of
// at least two sources. Each output may be one of the sources, and no output overlaps another one. float16 and bfloat16
// accumulate in float32 and are rounded once; mean rounds the sum and then divides by the number of sources; integer
// sums wrap; a bool counts as a truth value (sum, max: or; product, min: and); min and max hand on NaN. bit_ operations
// on floating dtypes and mean of others are an InternalError.
void reduce(ReduceOp op, c10::ScalarType dtype, std::span<const void* const> sources, void* out,
            std::span<void* const> also, std::int64_t count);

}  // namespace espalier::detail::host
