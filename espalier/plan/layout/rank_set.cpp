// SPDX-License-Identifier: Apache-2.0
// Rank sets in normal form: extents fastest first, offset = first member. Two sets without lists
// are equal exactly when their normal forms are: the step of the fastest extent is the gap between
// the first two members, its size the length of the run with that gap (a following extent that
// continued the run has been merged), and so on outwards.
#include "espalier/plan/layout/rank_set.hpp"

#include <algorithm>
#include <limits>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

constexpr std::int64_t kLongest = 16;  // members that to_string() spells out

// The common distance of neighbouring entries, or 0 if there is none.
std::int64_t common_step(std::span<const std::int64_t> list) {
  const std::int64_t step = list[1] - list[0];
  for (std::size_t i = 2; i < list.size(); ++i) {
    if (list[i] - list[i - 1] != step) return 0;
  }
  return step;
}

void check_ascending(std::span<const std::int64_t> list, const char* what) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    ESPALIER_CHECK_CONFIG(list[i] >= 0, "rank set: {} {} is negative; expected values from 0", what, list[i]);
    ESPALIER_CHECK_CONFIG(i == 0 || list[i - 1] < list[i],
                          "rank set: {} {} follows {}; expected an ascending list without repetitions", what, list[i],
                          list[i - 1]);
  }
}

}  // namespace

RankSet::RankSet(std::int64_t offset, std::span<const Axis> axes) {
  ESPALIER_CHECK_CONFIG(offset >= 0, "rank set: the offset {} is negative; expected a rank", offset);
  ESPALIER_CHECK_CONFIG(axes.size() <= kMaxAxes, "rank set: {} axes; at most {} can vary", axes.size(), kMaxAxes);
  offset_ = offset;
  for (std::size_t i = axes.size(); i-- > 0;) {
    const Axis& axis = axes[i];
    ESPALIER_CHECK_CONFIG(axis.size >= 1 && axis.stride >= 1,
                          "rank set: axis {} has size {} and stride {}; expected at least 1", i, axis.size,
                          axis.stride);
    check_ascending(axis.coordinates, "coordinate");
    ESPALIER_CHECK_CONFIG(axis.coordinates.empty() || axis.coordinates.back() < axis.size,
                          "rank set: axis {} lists coordinate {}, but its size is {}; expected at most {}", i,
                          axis.coordinates.back(), axis.size, axis.size - 1);
    push_slower(axis.size, axis.stride, axis.coordinates);
  }
}

RankSet RankSet::single(std::int64_t rank) { return RankSet(rank, {}); }

RankSet RankSet::range(std::int64_t first, std::int64_t size) {
  const Axis axis{.size = size, .stride = 1};
  return RankSet(first, std::span(&axis, 1));
}

RankSet RankSet::of(std::span<const std::int64_t> ranks) {
  ESPALIER_CHECK_CONFIG(!ranks.empty(), "rank set: no ranks; expected at least one");
  check_ascending(ranks, "rank");
  RankSet set;
  set.push_slower(static_cast<std::int64_t>(ranks.size()), 1, ranks);
  return set;
}

void RankSet::push_slower(std::int64_t size, std::int64_t stride, std::span<const std::int64_t> coordinates) {
  std::int64_t count = size;
  if (!coordinates.empty()) {
    // A list moves the offset to its first entry; evenly spaced entries are a plain extent.
    count = static_cast<std::int64_t>(coordinates.size());
    std::int64_t shift = 0;
    ESPALIER_CHECK_CONFIG(!__builtin_mul_overflow(coordinates.front(), stride, &shift) &&
                              !__builtin_add_overflow(offset_, shift, &offset_),
                          "rank set: coordinate {} with stride {} lies beyond the 64-bit ranks", coordinates.front(),
                          stride);
    const std::int64_t step = count == 1 ? 1 : common_step(coordinates);
    if (step != 0) {
      ESPALIER_CHECK_CONFIG(!__builtin_mul_overflow(stride, step, &stride),
                            "rank set: coordinates {} apart with this stride lie beyond the 64-bit ranks", step);
      coordinates = {};
    }
  }
  if (count == 1) return;
  ESPALIER_CHECK_CONFIG(stride > reach_,
                        "rank set: an axis has stride {}, but the faster axes span {} ranks; "
                        "expected a larger stride",
                        stride, reach_);
  const std::int64_t last = coordinates.empty() ? count - 1 : coordinates.back() - coordinates.front();
  std::int64_t span = 0;
  std::int64_t end = 0;
  ESPALIER_CHECK_CONFIG(
      !__builtin_mul_overflow(last, stride, &span) && !__builtin_add_overflow(reach_, span, &reach_) &&
          !__builtin_add_overflow(offset_, reach_, &end) && end < std::numeric_limits<std::int64_t>::max(),
      "rank set: {} coordinates with stride {} from rank {} lie beyond the 64-bit ranks", last + 1, stride, offset_);
  size_ *= count;  // at most reach_ + 1
  Extent* faster = num_axes_ > 0 ? &axes_[num_axes_ - 1] : nullptr;
  if (faster != nullptr && coordinates.empty() && faster->list < 0 && stride == faster->size * faster->stride) {
    faster->size *= count;
    return;
  }
  Extent extent{.size = count, .stride = stride};
  if (!coordinates.empty()) {
    auto lists = lists_ ? *lists_ : std::vector<std::int64_t>{};
    extent.list = static_cast<std::int64_t>(lists.size());
    for (std::int64_t c : coordinates) lists.push_back(c - coordinates.front());
    lists_ = std::make_shared<const std::vector<std::int64_t>>(std::move(lists));
  }
  axes_[num_axes_++] = extent;
}

std::int64_t RankSet::coordinate(const Extent& extent, std::int64_t index) const {
  return extent.list < 0 ? index : (*lists_)[extent.list + index];
}

std::int64_t RankSet::member(std::int64_t index) const {
  ESPALIER_CHECK_CONFIG(index >= 0 && index < size_, "rank set: index {} of a set of {}; expected 0 to {}", index,
                        size_, size_ - 1);
  std::int64_t rank = offset_;
  for (int i = 0; i < num_axes_; ++i) {
    rank += coordinate(axes_[i], index % axes_[i].size) * axes_[i].stride;
    index /= axes_[i].size;
  }
  return rank;
}

std::optional<std::int64_t> RankSet::index_of(std::int64_t rank) const {
  if (rank < offset_ || rank - offset_ > reach_) return std::nullopt;
  std::int64_t rest = rank - offset_;
  std::int64_t index = 0;
  for (int i = num_axes_; i-- > 0;) {
    const Extent& extent = axes_[i];
    std::int64_t c = rest / extent.stride;
    rest -= c * extent.stride;
    if (extent.list >= 0) {
      const auto begin = lists_->begin() + extent.list;
      const auto found = std::lower_bound(begin, begin + extent.size, c);
      if (found == begin + extent.size || *found != c) return std::nullopt;
      c = found - begin;
    } else if (c >= extent.size) {
      return std::nullopt;
    }
    index = index * extent.size + c;
  }
  return rest == 0 ? std::optional(index) : std::nullopt;
}

RankSet RankSet::shifted(std::int64_t distance) const {
  RankSet set = *this;
  std::int64_t last = 0;
  ESPALIER_CHECK_CONFIG(!__builtin_add_overflow(offset_, distance, &set.offset_) && set.offset_ >= 0 &&
                            !__builtin_add_overflow(set.offset_, reach_, &last),
                        "rank set: {} cannot be shifted by {}; expected ranks from 0, within 64 bits", to_string(),
                        distance);
  return set;
}

RankSet RankSet::pick(const RankSet& indices) const {
  ESPALIER_CHECK_CONFIG(indices.last() < size_, "rank set: index {} of a set of {}; expected 0 to {}", indices.last(),
                        size_, size_ - 1);
  const bool evenly_spaced = num_axes_ == 0 || (num_axes_ == 1 && axes_[0].list < 0);
  if (!evenly_spaced) {
    std::vector<std::int64_t> ranks = indices.to_vector();
    for (std::int64_t& rank : ranks) rank = member(rank);
    return of(ranks);
  }
  const std::int64_t stride = num_axes_ == 0 ? 1 : axes_[0].stride;
  RankSet set = indices;  // all products are at most reach_
  set.offset_ = offset_ + indices.offset_ * stride;
  set.reach_ *= stride;
  for (int i = 0; i < set.num_axes_; ++i) set.axes_[i].stride *= stride;
  return set;
}

std::vector<std::int64_t> RankSet::to_vector() const {
  std::vector<std::int64_t> ranks{offset_};
  ranks.reserve(size_);
  for (int i = 0; i < num_axes_; ++i) {
    const auto block = static_cast<std::int64_t>(ranks.size());
    for (std::int64_t j = 1; j < axes_[i].size; ++j) {
      const std::int64_t shift = coordinate(axes_[i], j) * axes_[i].stride;
      for (std::int64_t k = 0; k < block; ++k) ranks.push_back(ranks[k] + shift);
    }
  }
  return ranks;
}

std::string RankSet::to_string() const {
  if (size_ <= kLongest) return fmt::format("[{}]", fmt::join(to_vector(), ","));
  std::string form = std::to_string(offset_);
  for (int i = num_axes_; i-- > 0;) {
    const Extent& extent = axes_[i];
    if (extent.list < 0) {
      form += fmt::format("+{}x{}", extent.size, extent.stride);
    } else {
      const auto begin = lists_->begin() + extent.list;
      form += fmt::format("+{{{}}}x{}", fmt::join(begin, begin + extent.size, ","), extent.stride);
    }
  }
  return fmt::format("[{},{},..,{}] ({} ranks, {})", offset_, member(1), offset_ + reach_, size_, form);
}

bool operator==(const RankSet& a, const RankSet& b) {
  if (a.size_ != b.size_ || a.offset_ != b.offset_ || a.reach_ != b.reach_) return false;
  const bool same_form =
      a.num_axes_ == b.num_axes_ && std::equal(a.axes_.begin(), a.axes_.begin() + a.num_axes_, b.axes_.begin());
  if (!a.lists_ && !b.lists_) return same_form;
  if (same_form && a.lists_ && b.lists_ && *a.lists_ == *b.lists_) return true;
  return a.to_vector() == b.to_vector();
}

}  // namespace espalier
