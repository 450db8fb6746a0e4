// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

// All partitioners return num_parts + 1 ascending cuts: part p holds items cuts[p] .. cuts[p+1]-1.
// ConfigError for num_parts < 1 or beyond 2^24, a negative number of items, negative or non-finite
// weights.

// Sizes differ by at most one, the longer parts first. More parts than items: the last parts are
// empty.
std::vector<std::int64_t> partition_uniform(std::int64_t num_items, std::int64_t num_parts);

// Smallest possible largest part; among those the smallest difference between largest and smallest
// part; among those what is left over goes to the first parts (the rightmost cuts, as
// partition_uniform has them for equal weights). No part is empty when there are at least as many
// items as parts; otherwise each item has a part of its own and the last parts are empty. Loads
// that differ by rounding alone count as equal. Cost O(num_items^2 * num_parts).
std::vector<std::int64_t> partition_balanced(std::span<const double> weights, std::int64_t num_parts);

// DeepSpeed's partition_balanced, cut for cut: part by part it keeps the cut with the smallest
// difference between largest and smallest load so far (ties: the rightmost), so its largest part
// may be larger than it need be and a part may be empty. For programs that must reproduce its stage
// boundaries. Cost O(num_items^2 * num_parts).
std::vector<std::int64_t> partition_deepspeed(std::span<const double> weights, std::int64_t num_parts);

// Checks an explicit cut list against the number of items and parts; returns it. A part may be
// empty only when there are fewer items than parts.
std::vector<std::int64_t> partition_explicit(std::vector<std::int64_t> cuts, std::int64_t num_items,
                                             std::int64_t num_parts);

// Weight 1 for names in which the case-insensitive regular expression (ECMAScript) is found, 0 for
// others; then balanced. ConfigError when the expression is malformed, or no name matches, listing
// the names.
std::vector<std::int64_t> partition_by_type(std::span<const std::string> type_names, std::string_view pattern,
                                            std::int64_t num_parts);

// Inclusive running sums.
std::vector<double> prefix_sum(std::span<const double> weights);

// The sum of weights in each part. ConfigError unless the cuts are ascending from 0 to the number
// of weights.
std::vector<double> part_loads(std::span<const double> weights, std::span<const std::int64_t> cuts);

}  // namespace espalier
