// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/layout/grid.hpp"

namespace espalier {

// Which axes rank_repr() leaves out, and what it puts between a name and its number, and between
// axes.
struct RankReprOptions {
  std::vector<std::string> omit_axes = {"data", "pipe"};
  std::string inner = "_";
  std::string outer = "-";
};

// A grid of processes as DeepSpeed's ProcessTopology names it: axes of your own, the last one
// fastest.
class ProcessTopology {
 public:
  // ConfigError unless there is one size >= 1 for each axis and the names are different
  // identifiers.
  ProcessTopology(std::span<const std::string> axes, std::span<const std::int64_t> sizes);

  static ProcessTopology pipe_data(std::int64_t pipe, std::int64_t data);
  static ProcessTopology pipe_data_model(std::int64_t pipe, std::int64_t data, std::int64_t model);
  // What a pipeline grid assumes without a topology: the world's prime factors, ascending, go to
  // pipe and data in turn.
  static ProcessTopology pipe_data_of(std::int64_t world_size);

  const Grid& grid() const { return grid_; }
  std::int64_t world_size() const { return grid_.size(); }
  std::int64_t size(std::string_view axis) const;  // 0 if there is no such axis

  // The rank at the given coordinates; each axis must be given once, else ConfigError.
  std::int64_t rank(std::span<const AxisCoordinate> coordinates) const;
  // Coordinates in the order of the axes; ConfigError if there is no such rank.
  std::vector<std::int64_t> coordinates(std::int64_t rank) const { return grid_.coordinates(rank); }

  // The groups along an axis, in the declared order of the other axes; none if there is no such
  // axis.
  std::vector<RankSet> comm_lists(std::string_view axis) const;
  // All ranks with the given coordinates; nullopt if a coordinate does not occur. ConfigError for
  // an unknown axis.
  std::optional<RankSet> filter(std::span<const AxisCoordinate> conditions) const;

  // "model_01": the coordinates with two digits at least, for file names.
  std::string rank_repr(std::int64_t rank, const RankReprOptions& options = {}) const;

 private:
  Grid grid_;
};

// Ascending, with repetitions; none for 1. ConfigError below 1.
std::vector<std::int64_t> prime_factors(std::int64_t n);

}  // namespace espalier
