// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/partition/flat_cut.hpp"

#include <algorithm>

#include "espalier/base/check.hpp"

namespace espalier {

FlatCut::FlatCut(std::span<const std::int64_t> sizes, std::int64_t num_ranks, std::int64_t alignment)
    : offsets_{0}, num_ranks_(num_ranks) {
  ESPALIER_CHECK_CONFIG(
      num_ranks >= 1 && alignment >= 1 && alignment % num_ranks == 0,
      "flat cut: alignment {} over {} ranks; expected at least one rank and a positive multiple of them", alignment,
      num_ranks);
  for (const std::int64_t size : sizes) {
    ESPALIER_CHECK_CONFIG(size >= 0, "flat cut: a parameter of {} elements; expected 0 or more", size);
    offsets_.push_back(offsets_.back() + size);
  }
  per_rank_ = (offsets_.back() + alignment - 1) / alignment * (alignment / num_ranks);
}

std::int64_t FlatCut::padding_elems(std::int64_t rank) const {
  return std::clamp<std::int64_t>((rank + 1) * per_rank_ - offsets_.back(), 0, per_rank_);
}

std::vector<FlatCut::Fragment> FlatCut::fragments(std::int64_t parameter) const {
  std::vector<Fragment> fragments;
  const std::int64_t begin = offsets_[parameter];
  const std::int64_t end = offsets_[parameter + 1];
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t rank = at / per_rank_;
    const std::int64_t stop = std::min(end, (rank + 1) * per_rank_);
    fragments.push_back({rank, at - begin, at - rank * per_rank_, stop - at});
    at = stop;
  }
  return fragments;
}

}  // namespace espalier
