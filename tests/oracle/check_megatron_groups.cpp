// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/error.hpp"
#include "espalier/plan/groups/megatron.hpp"
#include "tests/oracle/plans.hpp"

namespace espalier::oracle {
namespace {

Json lists_of(const Family& family) {
  Json lists = Json::array();
  for (std::int64_t i = 0; i < family.size(); ++i) lists.push_back(ranks_of(family.set(i)));
  return lists;
}

MegatronRanks ranks_from(const Json& in) {
  return MegatronRanks({.tp = in.at("tp"),
                        .ep = in.at("ep"),
                        .dp = in.at("dp"),
                        .pp = in.at("pp"),
                        .cp = in.at("cp"),
                        .order = in.at("order"),
                        .rank_offset = in.value("rank_offset", 0)});
}

Json rank_generator(const Json& record) {
  const MegatronRanks ranks = ranks_from(record.at("in"));
  Json answer{{"world", ranks.grid().size()}};
  if (record.contains("out")) {
    for (const auto& [token, expected] : record.at("out").at("groups").items()) {
      answer["groups"][token] = lists_of(ranks.family(token));
    }
  }
  return answer;
}

Json rank_generator_token(const Json& record) {
  return lists_of(ranks_from(record.at("in")).family(record.at("in").at("token").get<std::string>()));
}

Json folding_tables(const Json& record) {
  const Json& in = record.at("in");
  const GroupPlan plan =
      ep_folding_plan(in.at("world"), {.pp = in.at("pp"), .tp = in.at("tp"), .ep = in.at("ep"), .etp = in.at("etp")});
  Json answer;
  for (std::int64_t i = 0; i < plan.size(); ++i) {
    const PlannedGroup group = plan.group(i);
    answer[group.name.substr(0, group.name.find('[')) + "_groups"].push_back(ranks_of(group.ranks));
  }
  answer["stage"] = plan.world_size() / in.at("pp").get<std::int64_t>();
  answer["dp"] = plan.group(plan.size("tp")).ranks.size();
  answer["edp"] = plan.group(plan.size() - 1).ranks.size();
  const std::int64_t rank = record.at("out").at("local").at("rank");
  answer["local"] = {{"rank", rank},
                     {"tp", ranks_of(*plan.own_ranks("tp", rank))},
                     {"dense_dp", ranks_of(*plan.own_ranks("dp", rank))},
                     {"ep", ranks_of(*plan.own_ranks("ep", rank))},
                     {"edp", ranks_of(*plan.own_ranks("edp", rank))}};
  return answer;
}

// A refusal must name the legal values that the record has.
Json auto_ep_folding(const Json& record) {
  try {
    return folding_tables(record);
  } catch (const ConfigError& error) {
    Json valid = record.value("valid", Json::object());
    // Upstream's tables are wrong for these, and refused here.
    if (record.at("in").value("etp", 1) != 1) valid = {{"etp", {1}}};
    for (const auto& [name, values] : valid.items()) {
      std::string list;
      for (const Json& value : values) list += (list.empty() ? "values: " : ", ") + value.dump();
      if (!std::string(error.what()).ends_with(list)) {
        throw std::runtime_error("the refusal '" + std::string(error.what()) + "' does not end with '" + list + "'");
      }
    }
    throw;
  }
}

// Upstream's later policy forbids some of the tables; here they are what the caller asked for.
Json without_policy(const Json& record) {
  Json expected = expected_of(record);
  expected.erase("policy_refuses");
  return expected;
}

}  // namespace

Checkers megatron_groups_checkers() {
  return {{"rank_generator", {rank_generator}},
          {"rank_generator_token", {rank_generator_token}},
          {"auto_ep_folding", {auto_ep_folding, without_policy}}};
}

}  // namespace espalier::oracle
