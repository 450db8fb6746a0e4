// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/layout/grid.hpp"
#include "espalier/plan/layout/rank_set.hpp"

namespace espalier {

inline constexpr std::int64_t kRest = -1;  // "whatever is left of the world": one axis at most

// What a program asks for. pipe, data, context and tensor multiply to the world. `expert` does not:
// it cuts the ranks of each stage once more, in expert_data x expert x expert_tensor. expert_tensor
// 0 means "as tensor".
//
// `order` places the axes in the world, slowest first: the five names pipe, data, expert, context,
// tensor joined by '-' (expert may be left out and then follows data), or one of these presets:
//   deepspeed, megatron    pipe-data-expert-context-tensor   (both put ranks there by default)
//   deepspeed_data_first   pipe-expert-data-context-tensor   (replicas of an expert are neighbours:
//   D+E) megatron_data_slowest  data-pipe-expert-context-tensor   (which Megatron spells
//   tp-cp-ep-pp-dp, fastest first)
struct LayoutSpec {
  std::int64_t pipe = 1;
  std::int64_t data = 1;
  std::int64_t context = 1;
  std::int64_t tensor = 1;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 0;
  std::string order = "deepspeed";
};

// A checked LayoutSpec for a world: immutable, a cheap value. Answers everything about ranks,
// coordinates and groups without communication, in O(axes).
//
// Two grids over the same ranks, in the order asked for: the dense one (pipe, data, context,
// tensor) and the expert one (pipe, expert_data, expert, expert_tensor), which has expert_data in
// the place of data and expert_tensor in that of tensor. Both cut the world into the same stages.
// Without experts (expert 1, expert_tensor as tensor) the dense grid serves for both, and
// expert_data is data x context.
class Layout {
 public:
  // ConfigError, with the arithmetic and the legal values, unless the sizes multiply to the world,
  // the expert sizes to a stage, and both grids have the same stages.
  Layout(const LayoutSpec& spec, std::int64_t world_size);

  // "data=4,pipe=2,tensor=rest,order=megatron"; ConfigError for unknown or repeated keys and for
  // sizes below 1.
  static LayoutSpec parse(std::string_view text);

  std::int64_t world_size() const;
  // Of pipe, data, context, tensor, expert, expert_data, expert_tensor; ConfigError lists them when
  // unknown.
  std::int64_t size(std::string_view axis) const;
  // Where the size comes from: "given" (the spec's, which is 1 where it says nothing), "rest" (inferred), "as tensor"
  // (expert_tensor, where the spec says nothing) or "left" (expert_data: what the other sizes leave of a stage).
  std::string_view origin(std::string_view axis) const;
  std::int64_t coordinate(std::string_view axis, std::int64_t rank) const;

  // The families of groups, in the order in which they are created:
  //   data, context, data_context (loss and gradient mean), tensor, pipe, model (pipe x tensor:
  //   norm and overflow of the dense parameters), stage (data x context x tensor), expert (who
  //   exchanges tokens), expert_data (who holds the same experts), expert_tensor, expert_model
  //   (pipe x expert x expert_tensor: norm of the experts)
  std::span<const std::string_view> families() const;
  // The group of `family` that `rank` belongs to. O(axes), no allocation.
  RankSet group(std::string_view family, std::int64_t rank) const;
  // All groups of a family.
  Family family(std::string_view name) const;

  // One line per fact, as agreed on between ranks: "world=16", "order=...", "pipe=2", "data=4", ...
  std::vector<std::string> describe() const;
  // "pipe=2,data=4": the sizes above 1 in a form that parse() reads; "data=1" if there are none.
  std::string to_string() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace espalier
