// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace espalier {

// Parameters of the given sizes lie side by side in one flat buffer, which is padded to a multiple of `alignment` and
// cut into equal parts for the ranks: who holds what, and how much of it is padding. (ZeRO's flat partitions.)
class FlatCut {
 public:
  // ConfigError unless all sizes are >= 0, ranks >= 1 and `alignment` is a positive multiple of ranks.
  FlatCut(std::span<const std::int64_t> sizes, std::int64_t num_ranks, std::int64_t alignment);

  std::int64_t total_elems() const { return per_rank_ * num_ranks_; }  // padding included
  std::int64_t per_rank_elems() const { return per_rank_; }
  std::int64_t padding_elems(std::int64_t rank) const;  // at the end of this rank's part; several ranks may have some

  // A piece of one parameter on one rank.
  struct Fragment {
    std::int64_t rank;
    std::int64_t parameter_offset;  // of its first element within the parameter
    std::int64_t rank_offset;       // and within the rank's part
    std::int64_t num_elems;
    friend bool operator==(const Fragment&, const Fragment&) = default;
  };
  // Where a parameter lies, rank by rank; nothing for an empty one.
  std::vector<Fragment> fragments(std::int64_t parameter) const;

 private:
  std::vector<std::int64_t> offsets_;  // of each parameter, and the end of the last
  std::int64_t num_ranks_;
  std::int64_t per_rank_;
};

}  // namespace espalier
