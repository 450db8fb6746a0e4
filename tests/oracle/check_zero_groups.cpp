// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/groups/zero.hpp"
#include "tests/oracle/plans.hpp"

namespace espalier::oracle {
namespace {

Json blocks_answer(const GroupPlan& plan) {
  return {{"effective_n", plan.group(0).ranks.size()},
          {"creation", creation_of(plan)},
          {"my", own_of(plan, plan.families()[0])}};
}

Json parameter_parallel(const Json& record) {
  const Json& in = record.at("in");
  const auto size = in.at("n").is_null() ? std::nullopt : std::optional<std::int64_t>(in.at("n").get<std::int64_t>());
  return blocks_answer(parameter_parallel_plan(in.at("world"), size));
}

Json secondary_shard(const Json& record) {
  return blocks_answer(secondary_shard_plan(record.at("in").at("world"), record.at("in").at("n")));
}

Json local_global(const Json& record) {
  const GroupPlan plan = local_global_plan(record.at("in").at("world"), record.at("in").at("devices_per_node"));
  Json creation = Json::array();
  for (std::int64_t i = 0; i < plan.size(); ++i) {
    const PlannedGroup group = plan.group(i);  // "local[0]", upstream's local_0
    const std::size_t bracket = group.name.find('[');
    const std::string number = group.name.substr(bracket + 1, group.name.size() - bracket - 2);
    creation.push_back({group.name.substr(0, bracket) + "_" + number, ranks_of(group.ranks)});
  }
  return {{"creation", creation}};
}

Json mics(const Json& record) {
  const Json& in = record.at("in");
  const GroupPlan plan = mics_plan(
      in.at("world"),
      {.shard = in.at("shard"), .devices_per_node = in.at("devices_per_node"), .hierarchical = in.at("hierarchical")});
  Json creation = Json::array();
  for (std::int64_t i = 0; i < plan.size(); ++i) {
    const PlannedGroup group = plan.group(i);
    creation.push_back({group.name.substr(0, group.name.find('[')), ranks_of(group.ranks)});
  }
  Json own;
  for (const char* family : {"shard", "replicate", "intra", "inter"})
    own[family] = std::vector<Json>(plan.world_size());
  for (const std::string& family : plan.families()) own[family] = own_of(plan, family);
  return {{"creation", creation}, {"my", own}};
}

}  // namespace

Checkers zero_groups_checkers() {
  return {{"initialize_parameter_parallel_groups", {parameter_parallel}},
          {"create_zero_param_parallel_group", {secondary_shard}},
          {"local_all_to_all_groups", {local_global}},
          {"create_mics_comm_groups", {mics}}};
}

}  // namespace espalier::oracle
