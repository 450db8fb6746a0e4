// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/live_plans.hpp"

#include <ATen/ops/full.h>

#include <algorithm>

#include "espalier/comm/collectives.hpp"
#include "espalier/comm/group_set.hpp"
#include "espalier/plan/groups/named_plans.hpp"
#include "tests/support/expect.hpp"

namespace espalier::testing_support {

std::vector<AskedPlan> asked_plans(std::int64_t world_size) {
  std::vector<AskedPlan> plans{
      {"model_data", {"model=2"}},
      {"expert_data", {"expert=2"}},
      {"expert_data", {"expert=2", "order=data_first"}},
      {"expert_data", {"expert=2", "pipe=2"}},
      {"expert_data", {"expert=2", "model=2", "variant=v0.19", "lanes=sequence"}},
      {"expert_data_model", {"tensor=2", "expert=2"}},
      {"expert_data_model", {"tensor=2", "expert=2", "expert_tensor=1", "order=data_first"}},
      {"inference_expert", {"sizes=2,4"}},
      {"inference_model", {"sizes=4,2"}},
      {"pipeline_grid", {}},
      {"parameter_parallel", {}},
      {"secondary_shard", {"size=2"}},
      {"local_global", {"devices_per_node=2"}},
      {"mics", {"shard=4", "devices_per_node=2", "hierarchical=yes"}},
  };
  const std::vector<AskedPlan> of_4{
      {"layout", {"pipe=2", "data=2", "expert=2"}},
      {"topology", {"pipe=2", "data=2"}},
      {"pipeline_pairs", {"pipe=2", "data=2"}},
      {"tied", {"pipe=4", "data=1", "layers=wte,pos,-,pos,-,wte", "cuts=0,2,3,5,6"}},
      {"megatron", {"tp=2", "pp=2", "families=tp,dp,pp,tp-pp"}},
      {"megatron_embedding", {"tp=2", "pp=2"}},
      {"ep_folding", {"tp=2", "ep=4"}},
  };
  const std::vector<AskedPlan> of_8{
      {"layout", {"pipe=2", "data=2", "tensor=2", "expert=2"}},
      {"layout", {"data=2", "context=2", "tensor=2", "expert=4", "expert_tensor=1"}},
      {"expert_data", {"expert=2", "pipe=2", "model=2", "variant=v0.19"}},
      {"expert_data_model", {"pipe=2", "tensor=2", "expert=2"}},
      {"topology", {"pipe=2", "model=2", "data=2"}},
      {"pipeline_grid", {"pipe=4", "data=2"}},
      {"pipeline_grid", {"pipe=2", "data=2", "model=2"}},
      {"pipeline_pairs", {"pipe=4", "data=2"}},
      {"pipeline_pairs", {"pipe=2", "data=4"}},
      {"tied", {"pipe=4", "data=2", "layers=wte,pos,-,pos,-,wte", "cuts=0,2,3,5,6"}},
      {"megatron", {"tp=2", "dp=2", "pp=2", "families=tp,dp,pp,tp-pp,dp-tp"}},
      {"megatron_embedding", {"tp=2", "pp=4"}},
      {"ep_folding", {"pp=2", "tp=2", "ep=4"}},
  };
  const std::vector<AskedPlan>& more = world_size == 4 ? of_4 : of_8;
  plans.insert(plans.end(), more.begin(), more.end());
  for (const NamedPlan& named : named_plans()) {
    expect(std::any_of(plans.begin(), plans.end(), [&](const AskedPlan& each) { return each.name == named.name; }),
           "no plan '" + std::string(named.name) + "' is tested");
  }
  return plans;
}

namespace {

// Sums 2^rank: each member once, and nobody else.
void expect_reduces(const Group& group, const RankSet& planned) {
  std::int64_t sum = 0;
  for (const std::int64_t member : planned.to_vector()) sum += std::int64_t{1} << member;
  const std::int64_t self = group.world_rank(group.rank());
  at::Tensor tensor = at::full({3}, std::int64_t{1} << self, at::kLong);
  all_reduce_(tensor, group).wait();
  expect(tensor.equal(at::full({3}, sum, at::kLong)), "all_reduce through " + group.name());
}

void expect_broadcasts(const Group& group, const RankSet& planned) {
  at::Tensor tensor = at::full({3}, 100 + group.world_rank(group.rank()), at::kLong);
  broadcast_(tensor, group, *group.group_rank(planned.first())).wait();
  expect(tensor.equal(at::full({3}, 100 + planned.first(), at::kLong)), "broadcast through " + group.name());
}

void expect_passes_around(const Group& group, const RankSet& planned) {
  if (group.size() == 1) return;
  const std::int64_t size = planned.size(), me = *planned.index_of(group.world_rank(group.rank()));
  const at::Tensor mine = at::full({2}, planned.member(me), at::kLong);
  at::Tensor theirs = at::full({2}, -1, at::kLong);
  Work sent = send(mine, group, (me + 1) % size, 5);
  recv(theirs, group, (me + size - 1) % size, 5).wait();
  sent.wait();
  expect(theirs.equal(at::full({2}, planned.member((me + size - 1) % size), at::kLong)),
         "ring through " + group.name());
}

void use(World& world, const AskedPlan& asked) {
  const GroupPlan plan = plan_by_name(asked.name, world.size(), asked.settings);
  const GroupSet groups(world, plan);
  groups.warm_up(std::chrono::milliseconds(20'000));
  std::size_t place = 0;
  for (std::int64_t index = 0; index < plan.size(); ++index) {
    const PlannedGroup planned = plan.group(index);
    if (!planned.ranks.contains(world.rank())) continue;
    expect(place < groups.groups().size(), asked.name + ": " + planned.name + " is missing");
    const Group& group = groups.groups()[place++];
    expect(group.name() == planned.name && group.members() == planned.ranks, asked.name + ": place of " + planned.name);
    expect(groups.group(planned.name).members() == planned.ranks, "look-up of " + planned.name);
    expect_reduces(group, planned.ranks);
    expect_broadcasts(group, planned.ranks);
    expect_passes_around(group, planned.ranks);
  }
  expect(place == groups.groups().size(), asked.name + ": number of groups");
  for (const std::string& family : plan.families()) {
    const auto planned = plan.own_ranks(family, world.rank());
    expect(groups.has_own(family) == planned.has_value(), asked.name + ": has " + family);
    if (planned) expect(groups.own(family).members() == *planned, asked.name + ": own " + family);
  }
}

}  // namespace

void use_every_plan(World& world) {
  for (const AskedPlan& asked : asked_plans(world.size())) use(world, asked);
}

}  // namespace espalier::testing_support
