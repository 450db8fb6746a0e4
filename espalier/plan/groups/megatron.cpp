// SPDX-License-Identifier: Apache-2.0
// Megatron-core's parallel_state.RankGenerator as a Grid: its order, read backwards, is the grid's
// axes.
#include "espalier/plan/groups/megatron.hpp"

#include <algorithm>
#include <array>

#include "espalier/base/check.hpp"
#include "espalier/plan/layout/divisors.hpp"

namespace espalier {
namespace {

std::vector<std::string_view> split_names(std::string_view text) {
  std::vector<std::string_view> names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('-', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

Grid make_grid(const MegatronSpec& spec) {
  const std::array<GridAxis, 5> sizes{
      {{"tp", spec.tp}, {"cp", spec.cp}, {"ep", spec.ep}, {"dp", spec.dp}, {"pp", spec.pp}}};
  ESPALIER_CHECK_CONFIG(spec.ep == 1 || spec.cp == 1,
                        "megatron: ep {} and cp {} in one grid; expected one of them to be 1: "
                        "dense and expert ranks are two grids",
                        spec.ep, spec.cp);
  std::vector<GridAxis> axes;  // fastest first
  for (std::string_view name : split_names(spec.order)) {
    const auto found =
        std::find_if(sizes.begin(), sizes.end(), [&](const GridAxis& axis) { return axis.name == name; });
    ESPALIER_CHECK_CONFIG(found != sizes.end(),
                          "megatron: the order '{}' names '{}'; expected tp, cp, ep, dp and pp, joined by '-'",
                          spec.order, name);
    axes.push_back(*found);
  }
  for (const GridAxis& axis : sizes) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    ESPALIER_CHECK_CONFIG(axis.size == 1,
                          "megatron: the order '{}' leaves out {} of size {}; only axes of size 1 may be left out",
                          spec.order, axis.name, axis.size);
    axes.push_back(axis);
  }
  std::reverse(axes.begin(), axes.end());
  return Grid(axes, spec.rank_offset);
}

}  // namespace

MegatronRanks::MegatronRanks(const MegatronSpec& spec) : grid_(make_grid(spec)) {}

Family MegatronRanks::family(std::string_view token) const {
  const std::vector<std::string_view> names = split_names(token);
  const std::vector<Varying> varying(names.begin(), names.end());
  return grid_.family(varying);
}

GroupPlan MegatronRanks::embedding_plan() const {
  const std::int64_t last = grid_.size("pp") - 1;
  GroupPlan plan(grid_.offset() + grid_.size());
  plan.add("embedding",
           grid_.family({{"pp", last == 0 ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{0, last}}}));
  plan.add("position_embedding", grid_.family({{"pp", {0}}}));
  return plan;
}

GroupPlan ep_folding_plan(std::int64_t world_size, const EpFoldingSpec& spec) {
  constexpr const char* kWhere = "ep_folding";
  check_divides(kWhere, "pp", spec.pp, "the world", world_size);
  const std::int64_t stage = world_size / spec.pp;
  check_divides(kWhere, "tp", spec.tp, "the stage", stage);
  check_divides(kWhere, "ep", spec.ep, "the stage", stage);
  ESPALIER_CHECK_CONFIG(spec.etp == 1,
                        "ep_folding: etp {}, for which folding has no groups (a layout with tensor={},expert={},"
                        "expert_tensor={} has); legal etp values: 1",
                        spec.etp, spec.tp, spec.ep, spec.etp);
  const Grid dense{{"pp", spec.pp}, {"dp", stage / spec.tp}, {"tp", spec.tp}};
  const Grid experts{{"pp", spec.pp}, {"edp", stage / spec.ep}, {"ep", spec.ep}};
  GroupPlan plan(world_size);
  plan.add("tp", dense.family({"tp"}));
  plan.add("dp", dense.family({"dp"}));
  plan.add("ep", experts.family({"ep"}));
  plan.add("edp", experts.family({"edp"}));
  return plan;
}

}  // namespace espalier
