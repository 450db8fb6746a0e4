// SPDX-License-Identifier: Apache-2.0
// A plan is a short list of pieces, each a lazily enumerated family; group i is found by the piece
// that covers i, a rank's own group by asking the family of each piece for the rank's index.
#include "espalier/plan/groups/group_plan.hpp"

#include <algorithm>

#include "espalier/base/check.hpp"

namespace espalier {

GroupPlan::GroupPlan(std::int64_t world_size) : world_size_(world_size) {
  ESPALIER_CHECK_CONFIG(world_size >= 1, "group plan: the world has {} ranks; expected at least 1", world_size);
}

void GroupPlan::add(std::string_view family, const Family& sets) {
  ESPALIER_CHECK_CONFIG(
      !ranks_, "group plan: {} cannot be added to a plan that was moved to other ranks; add it before", family);
  const RankSet last = sets.grid().ranks();
  ESPALIER_CHECK_CONFIG(last.member(last.size() - 1) < world_size_,
                        "group plan: family {} over {} has ranks up to {}, but the world has {}; "
                        "expected ranks below that",
                        family, sets.grid().to_string(), last.member(last.size() - 1), world_size_);
  append(family, sets);
}

void GroupPlan::add(std::string_view family, const RankSet& set) { add(family, Family(set)); }

void GroupPlan::append(std::string_view family, const Family& sets) {
  pieces_.push_back({.family = std::string(family),
                     .sets = sets,
                     .first = size_,
                     .first_in_family = has(family) ? size(family) : 0,
                     .line = fmt::format("{}={}", family, sets.to_string())});
  size_ += sets.size();
}

void GroupPlan::include(const GroupPlan& other) {
  ESPALIER_CHECK_CONFIG(other.world_size_ == world_size_ && other.ranks_ == ranks_,
                        "group plan: a plan of {} ranks cannot be included in one of {}; expected the same ranks",
                        other.world_size_, world_size_);
  for (const std::string& family : other.families()) {
    std::vector<std::string> here;
    std::vector<std::string> there;
    for (const Piece& p : pieces_) {
      if (p.family == family) here.push_back(p.sets.to_string());
    }
    for (const Piece& p : other.pieces_) {
      if (p.family == family) there.push_back(p.sets.to_string());
    }
    ESPALIER_CHECK_CONFIG(here.empty() || here == there,
                          "group plan: the family {} is {}, and is to be {} too; expected another "
                          "name for other sets",
                          family, fmt::join(here, " and "), fmt::join(there, " and "));
  }
  const std::vector<std::string> known = families();
  for (const Piece& piece : other.pieces_) {
    if (std::find(known.begin(), known.end(), piece.family) == known.end()) append(piece.family, piece.sets);
  }
}

GroupPlan GroupPlan::on(const RankSet& ranks) const {
  ESPALIER_CHECK_CONFIG(ranks.size() == world_size_ && !ranks_,
                        "group plan: {} ranks for a plan of {}; expected one for each", ranks.size(), world_size_);
  GroupPlan plan = *this;
  if (ranks != RankSet::range(0, world_size_)) plan.ranks_ = ranks;
  return plan;
}

RankSet GroupPlan::translated(const RankSet& set) const { return ranks_ ? ranks_->pick(set) : set; }

PlannedGroup GroupPlan::group(std::int64_t index) const {
  ESPALIER_CHECK_CONFIG(index >= 0 && index < size_, "group plan: there is no group {}; expected 0 to {}", index,
                        size_ - 1);
  const auto next = std::upper_bound(pieces_.begin(), pieces_.end(), index,
                                     [](std::int64_t i, const Piece& piece) { return i < piece.first; });
  const Piece& piece = *std::prev(next);
  const std::int64_t i = index - piece.first;
  return {fmt::format("{}[{}]", piece.family, piece.first_in_family + i), translated(piece.sets.set(i))};
}

std::vector<std::string> GroupPlan::families() const {
  std::vector<std::string> names;
  for (const Piece& piece : pieces_) {
    if (std::find(names.begin(), names.end(), piece.family) == names.end()) names.push_back(piece.family);
  }
  return names;
}

bool GroupPlan::has(std::string_view family) const {
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) { return piece.family == family; });
}

void GroupPlan::check_family(std::string_view family) const {
  ESPALIER_CHECK_CONFIG(has(family), "group plan: there is no family '{}'; expected one of {}", family,
                        fmt::join(families(), ", "));
}

std::int64_t GroupPlan::size(std::string_view family) const {
  check_family(family);
  std::int64_t size = 0;
  for (const Piece& piece : pieces_) {
    if (piece.family == family) size += piece.sets.size();
  }
  return size;
}

std::optional<std::int64_t> GroupPlan::own(std::string_view family, std::int64_t rank) const {
  check_family(family);
  const std::optional<std::int64_t> part = ranks_ ? ranks_->index_of(rank) : std::optional(rank);
  if (!part) return std::nullopt;
  for (const Piece& piece : pieces_) {
    if (piece.family != family) continue;
    if (const auto index = piece.sets.index_of(*part)) return piece.first + *index;
  }
  return std::nullopt;
}

std::optional<RankSet> GroupPlan::own_ranks(std::string_view family, std::int64_t rank) const {
  const auto index = own(family, rank);
  return index ? std::optional(group(*index).ranks) : std::nullopt;
}

std::vector<std::int64_t> GroupPlan::groups_of(std::int64_t rank) const {
  std::vector<std::int64_t> groups;
  const std::optional<std::int64_t> part = ranks_ ? ranks_->index_of(rank) : std::optional(rank);
  if (!part) return groups;
  for (const Piece& piece : pieces_) {
    if (const auto index = piece.sets.index_of(*part)) groups.push_back(piece.first + *index);
  }
  return groups;
}

std::vector<std::int64_t> GroupPlan::communicators_of(std::int64_t rank, std::int64_t world_size) const {
  std::vector<std::int64_t> opened;
  std::vector<RankSet> known{RankSet::range(0, world_size)};
  for (const std::int64_t index : groups_of(rank)) {
    const RankSet ranks = group(index).ranks;
    if (ranks.size() == 1 || std::find(known.begin(), known.end(), ranks) != known.end()) continue;
    known.push_back(ranks);
    opened.push_back(index);
  }
  return opened;
}

std::vector<std::string> GroupPlan::describe() const {
  std::vector<std::string> lines{fmt::format("world={}", world_size_)};
  if (ranks_) lines.push_back("ranks=" + ranks_->to_string());
  for (const Piece& piece : pieces_) lines.push_back(piece.line);
  return lines;
}

}  // namespace espalier
