// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/error.hpp"
#include "espalier/plan/groups/pipeline_grid.hpp"
#include "espalier/plan/groups/topology.hpp"
#include "tests/oracle/plans.hpp"

namespace espalier::oracle {
namespace {

constexpr std::int64_t kSmallWorld = 64;  // beyond that the records hold samples only

ProcessTopology topology_of(const Json& in) {
  return ProcessTopology(in.at("axes").get<std::vector<std::string>>(), in.at("dims").get<std::vector<std::int64_t>>());
}

std::vector<AxisCoordinate> coordinates_of(const Json& object) {
  std::vector<AxisCoordinate> list;
  for (const auto& [axis, coordinate] : object.items()) list.push_back({axis, coordinate});
  return list;
}

Json ranks_or_none(const std::optional<RankSet>& set) { return set ? ranks_of(*set) : Json::array(); }

Json process_topology(const Json& record) {
  const ProcessTopology topology = topology_of(record.at("in"));
  const Json& out = record.at("out");
  Json answer{{"world", topology.world_size()}, {"comm_lists", Json::object()}, {"axis_lists", Json::object()}};
  if (topology.world_size() <= kSmallWorld) {
    for (std::int64_t rank = 0; rank < topology.world_size(); ++rank)
      answer["coords"].push_back(topology.coordinates(rank));
    for (const GridAxis& axis : topology.grid().axes()) {
      answer["comm_lists"][axis.name] = lists_of(topology.comm_lists(axis.name));
      Json& axis_lists = answer["axis_lists"][axis.name] = Json::array();
      for (std::int64_t i = 0; i < axis.size; ++i) {
        axis_lists.push_back(ranks_or_none(topology.filter(std::vector<AxisCoordinate>{{axis.name, i}})));
      }
    }
  }
  answer["unknown_axis"]["dim"] = topology.size("no_such_axis");
  answer["unknown_axis"]["comm_lists"] = lists_of(topology.comm_lists("no_such_axis"));
  answer["filter"] = Json::array();
  for (const Json& sample : out.value("filter", Json::array())) {
    answer["filter"].push_back({sample[0], ranks_or_none(topology.filter(coordinates_of(sample[0])))});
  }
  answer["rank_repr"] = Json::array();
  for (Json sample : out.value("rank_repr", Json::array())) {
    sample["repr"] = topology.rank_repr(
        sample.at("rank"), {.omit_axes = sample.at("omit"), .inner = sample.at("inner"), .outer = sample.at("outer")});
    answer["rank_repr"].push_back(sample);
  }
  return answer;
}

Json pipeline_grid(const Json& record) {
  const Json& in = record.at("in");
  const std::int64_t world = in.at("world");
  const ProcessTopology topology = in.contains("axes") ? topology_of(in) : ProcessTopology::pipe_data_of(world);
  const PipelineGrid grid(topology, RankSet::range(0, world));
  const GroupPlan plan = grid.plan();
  Json answer{{"creation", creation_of(plan)}};
  for (const GridAxis& axis : topology.grid().axes()) {
    answer["axes"].push_back(axis.name);
    answer["dims"].push_back(axis.size);
  }
  for (const std::string& family : plan.families()) {
    answer["counts"][family] = plan.size(family);
    answer["my"][family] = own_of(plan, family);
  }
  for (std::int64_t rank = 0; rank < world; ++rank) {
    answer["p2p_pairs"].push_back({rank, grid.next_stage_rank(rank)});
    answer["stage"].push_back(grid.stage(rank));
    answer["data_id"].push_back(grid.data_id(rank));
    answer["ds_model_rank"].push_back(*plan.own_ranks("ds_model", rank)->index_of(rank));
    answer["slice_rank"].push_back(*plan.own_ranks("slice", rank)->index_of(rank));
  }
  answer["stage_to_global"] = Json::array();
  for (Json sample : record.at("out").value("stage_to_global", Json::array())) {
    sample["result"] =
        grid.stage_to_global(sample.at("rank"), sample.at("stage"), coordinates_of(sample.at("replace")));
    answer["stage_to_global"].push_back(sample);
  }
  return answer;
}

}  // namespace

Checkers topology_checkers() {
  const auto args = [](const Json& record) -> const Json& { return record.at("in").at("args"); };
  return {
      {"process_topology", {process_topology}},
      {"process_topology_invalid",
       {[](const Json& record) { return Json(topology_of(record.at("in")).world_size()); }}},
      {"get_rank",
       {[args](const Json& record) { return Json(topology_of(record.at("in")).rank(coordinates_of(args(record)))); }}},
      {"get_coord", {[args](const Json& record) {
         return Json(topology_of(record.at("in")).coordinates(args(record).at("rank")));
       }}},
      {"filter_match", {[args](const Json& record) {
         return ranks_or_none(topology_of(record.at("in")).filter(coordinates_of(args(record))));
       }}},
      {"get_axis_list", {[args](const Json& record) {
         const std::vector<AxisCoordinate> condition{{args(record).at("axis"), args(record).at("idx")}};
         return ranks_or_none(topology_of(record.at("in")).filter(condition));
       }}},
      {"prime_factors", {[](const Json& record) { return Json(prime_factors(record.at("in").at("n"))); }}},
      {"pipeline_grid", {pipeline_grid}},
  };
}

}  // namespace espalier::oracle
