// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/groups/tied.hpp"
#include "tests/oracle/plans.hpp"

namespace espalier::oracle {
namespace {

Json tied_groups(const Json& record) {
  const Json& in = record.at("in");
  const ProcessTopology topology(in.at("axes").get<std::vector<std::string>>(),
                                 in.at("dims").get<std::vector<std::int64_t>>());
  std::vector<std::string> layers;
  for (const Json& key : in.at("layers")) layers.push_back(key.is_null() ? "" : key.get<std::string>());
  const TiedPlan plan = tied_plan(topology, layers, in.at("parts").get<std::vector<std::int64_t>>());
  Json answer{
      {"keys", Json::array()}, {"stages", Json::object()}, {"groups", Json::array()}, {"replicated", Json::object()}};
  for (const TiedKey& key : plan.keys()) {
    answer["keys"].push_back(key.key);
    answer["stages"][key.key] = key.stages;
    Json& replicated = answer["replicated"][key.key] = Json::array();
    for (std::int64_t rank = 0; rank < topology.world_size(); ++rank) {
      if (plan.is_replica(key.key, rank)) replicated.push_back(rank);
    }
  }
  for (std::int64_t i = 0; i < plan.groups().size(); ++i) {
    const PlannedGroup group = plan.groups().group(i);
    const std::string key = group.name.substr(0, group.name.find('['));
    answer["groups"].push_back(
        {{"key", key}, {"ranks", ranks_of(group.ranks)}, {"owner", *plan.owner(key, group.ranks.last())}});
  }
  return answer;
}

// The records' alphabetical_keys are the order of a later DeepSpeed, which is not followed.
Json without_alphabetical_keys(const Json& record) {
  Json expected = expected_of(record);
  expected.erase("alphabetical_keys");
  expected.erase("note");
  return expected;
}

}  // namespace

Checkers tied_groups_checkers() { return {{"tied_groups", {tied_groups, without_alphabetical_keys}}}; }

}  // namespace espalier::oracle
