// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

// All partitioners return num_parts + 1 ascending cuts: part p holds items cuts[p] .. cuts[p+1]-1.
// ConfigError for num_parts < 1, negative or non-finite weights.

// Sizes differ by at most one, the longer parts first. More parts than items: the last parts are empty.
std::vector<std::int64_t> partition_uniform(std::int64_t num_items, std::int64_t num_parts);

// Smallest possible largest part; among those the smallest difference between largest and smallest part; among those
// the leftmost cuts. No part is empty when there are at least as many items as parts. Cost O(num_items^2 * num_parts).
std::vector<std::int64_t> partition_balanced(std::span<const double> weights, std::int64_t num_parts);

// DeepSpeed's partition_balanced, cut for cut (smallest difference between largest and smallest part; parts may be
// empty). For programs that must reproduce its stage boundaries.
std::vector<std::int64_t> partition_deepspeed(std::span<const double> weights, std::int64_t num_parts);

// Checks an explicit cut list against the number of items and parts; returns it.
std::vector<std::int64_t> partition_explicit(std::vector<std::int64_t> cuts, std::int64_t num_items, std::int64_t num_parts);

// Weight 1 for names in which the case-insensitive regular expression is found, 0 for others; then balanced.
// ConfigError when no name matches, listing the names.
std::vector<std::int64_t> partition_by_type(std::span<const std::string> type_names, std::string_view pattern,
                                            std::int64_t num_parts);

// Inclusive running sums.
std::vector<double> prefix_sum(std::span<const double> weights);

}  // namespace espalier
