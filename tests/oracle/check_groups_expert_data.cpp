// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "espalier/plan/groups/expert_data.hpp"
#include "tests/oracle/plans.hpp"

namespace espalier::oracle {
namespace {

ExpertDataVariant variant_of(const Json& in) {
  const std::string variant = in.at("variant");
  if (variant == "seed") return ExpertDataVariant::seed;
  return variant == "v0.16" ? ExpertDataVariant::v0_16 : ExpertDataVariant::v0_19;
}

ModelLanes lanes_of(const Json& in) {
  if (in.value("folded", false)) return ModelLanes::folded;
  return in.value("mp_mode", "tp") == "sp" ? ModelLanes::sequence : ModelLanes::tensor;
}

Json create(const Json& record) {
  const Json& in = record.at("in");
  const GroupPlan plan = expert_data_plan(
      in.at("world"), {.expert = in.at("ep"),
                       .pipe = in.at("pp"),
                       .order = in.at("order") == "E+D" ? ExpertOrder::expert_first : ExpertOrder::data_first,
                       .variant = variant_of(in),
                       .model = in.value("mp", 1),
                       .lanes = lanes_of(in)});
  const std::string name = "ep_size_" + in.at("ep").dump();
  Json creation = Json::array();
  for (std::int64_t i = 0; i < plan.size(); ++i) {
    const PlannedGroup group = plan.group(i);
    creation.push_back({group.name.starts_with(name + ".data") ? "edp" : "ep", ranks_of(group.ranks)});
  }
  return {{"creation", creation}, {"my_ep", own_of(plan, name)}, {"my_edp", own_of(plan, name + ".data")}};
}

// Members of a group ascend, whatever the order of the list that upstream passes.
Json with_sorted_lists(const Json& record) {
  Json expected = expected_of(record);
  for (Json& group : expected.at("creation")) std::sort(group[1].begin(), group[1].end());
  expected.erase("unsorted");
  return expected;
}

}  // namespace

Checkers groups_expert_data_checkers() { return {{"create_expert_and_data_parallel", {create, with_sorted_lists}}}; }

}  // namespace espalier::oracle
