// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "espalier/comm/group.hpp"

namespace espalier {

// [cuts.back()] <- the parts of all members in group order. `part` has one dimension; member p's has cuts[p+1] -
// cuts[p] elements, which may be none; `cuts`, and whether the part requires a gradient, are alike on all members. All
// of them call; blocks. One all_gather_v. Differentiable: a part's gradient is the sum of what the results of all
// members give to it, so all of them call backward too. One reduce_scatter_into, padded to the longest part.
at::Tensor gather_parts(const at::Tensor& part, std::span<const std::int64_t> cuts, const Group& group);

}  // namespace espalier
