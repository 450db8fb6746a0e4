// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "espalier/plan/groups/inference.hpp"
#include "tests/oracle/plans.hpp"

namespace espalier::oracle {
namespace {

Json expert_groups(const Json& record) {
  const Json& in = record.at("in");
  std::vector<std::int64_t> sizes;
  if (in.at("sizes").is_array()) {
    sizes = in.at("sizes").get<std::vector<std::int64_t>>();
  } else {
    sizes = {in.at("sizes").get<std::int64_t>()};
  }
  const GroupPlan plan = inference_expert_plan(in.at("world"), sizes);
  const std::vector<std::string> families = plan.families();
  Json answer{{"creation", Json::array()}, {"my_ep", Json::object()}, {"my_mp", Json::object()}};
  for (std::int64_t size : std::set<std::int64_t>(sizes.begin(), sizes.end())) {
    const std::string name = "ep_size_" + std::to_string(size);
    const bool has_model = std::find(families.begin(), families.end(), name + ".model") != families.end();
    answer["my_ep"][std::to_string(size)] = own_of(plan, name);
    answer["my_mp"][std::to_string(size)] =
        has_model ? own_of(plan, name + ".model") : Json(std::vector<Json>(plan.world_size()));
  }
  for (std::int64_t i = 0; i < plan.size(); ++i) {
    const PlannedGroup group = plan.group(i);
    const std::string family = group.name.substr(0, group.name.find('['));
    const bool model = family.ends_with(".model");
    answer["creation"].push_back(
        {model ? "mp" : "ep", std::stoll(family.substr(std::string("ep_size_").size())), ranks_of(group.ranks)});
  }
  return answer;
}

Json model_group(const Json& record) {
  const Json& in = record.at("in");
  const std::vector<std::int64_t> sizes = in.at("tp_sizes");
  const GroupPlan plan = inference_model_plan(in.at("world"), sizes);
  Json answer{{"creation", creation_of(plan)}};
  for (std::int64_t size : sizes) {
    const std::string family = "tp_size_" + std::to_string(size);
    Json members = Json::array();
    Json others = Json::array();
    for (std::int64_t rank = 0; rank < plan.world_size(); ++rank)
      (plan.own(family, rank) ? members : others).push_back(rank);
    answer["engine_groups"].push_back(ranks_of(*plan.own_ranks(family, 0)));
    answer["members"].push_back(members);
    answer["non_members"].push_back(others);
  }
  return answer;
}

}  // namespace

Checkers groups_inference_checkers() {
  return {{"create_ep_parallel_group", {expert_groups}}, {"create_model_parallel_group", {model_group}}};
}

}  // namespace espalier::oracle
