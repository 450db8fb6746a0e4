// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/groups/expert_data_model.hpp"
#include "tests/oracle/plans.hpp"

namespace espalier::oracle {
namespace {

Json answer(const Json& record) {
  const Json& in = record.at("in");
  const Layout layout({.pipe = in.at("pp"), .data = kRest, .tensor = in.at("tp")}, in.at("world"));
  const GroupPlan plan = expert_data_model_plan(
      layout,
      {.expert = in.at("ep"), .order = in.at("order") == "E+D" ? ExpertOrder::expert_first : ExpertOrder::data_first});
  const std::string name = "ep_size_" + in.at("ep").dump();
  const Json creation = creation_of(plan);
  const std::int64_t num_expert_groups = plan.size(name);
  return {{"n_ep", num_expert_groups},
          {"creation", creation},
          {"ep", Json(creation.begin(), creation.begin() + num_expert_groups)},
          {"edp", Json(creation.begin() + num_expert_groups, creation.end())},
          {"my_ep", own_of(plan, name)},
          {"my_edp", own_of(plan, name + ".data")},
          {"expert_tp_size", layout.size("tensor")}};
}

}  // namespace

Checkers groups_expert_data_model_checkers() {
  return {{"get_expert_parallel_ranks", {answer}}, {"create_expert_data_and_model_parallel", {answer}}};
}

}  // namespace espalier::oracle
