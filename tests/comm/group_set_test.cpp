// SPDX-License-Identifier: Apache-2.0
// Every named plan is made live on 8 ranks over each backend, and what its groups reduce and
// broadcast is compared with the plan.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

#include "espalier/base/error.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/group_set.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/plan/groups/model_data.hpp"
#include "espalier/plan/groups/named_plans.hpp"

namespace espalier {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kRanks = 8;

struct Asked {
  std::string name;
  std::vector<std::string> settings;
};

// All that fit 8 ranks: each name at least once.
const std::vector<Asked>& asked() {
  static const std::vector<Asked> all{
      {"layout", {"pipe=2", "data=2", "tensor=2", "expert=2"}},
      {"layout", {"data=2", "context=2", "tensor=2", "expert=4", "expert_tensor=1"}},
      {"model_data", {"model=2"}},
      {"expert_data", {"expert=2"}},
      {"expert_data", {"expert=4", "order=data_first"}},
      {"expert_data", {"expert=2", "pipe=2"}},
      {"expert_data", {"expert=2", "pipe=2", "model=2", "variant=v0.19"}},
      {"expert_data", {"expert=2", "model=2", "variant=v0.19", "lanes=sequence"}},
      {"expert_data_model", {"pipe=2", "tensor=2", "expert=2"}},
      {"expert_data_model", {"tensor=2", "expert=4", "expert_tensor=1", "order=data_first"}},
      {"inference_expert", {"sizes=2,4"}},
      {"inference_model", {"sizes=4,2"}},
      {"topology", {"pipe=2", "model=2", "data=2"}},
      {"pipeline_grid", {}},
      {"pipeline_grid", {"pipe=4", "data=2"}},
      {"pipeline_grid", {"pipe=2", "data=2", "model=2"}},
      {"pipeline_pairs", {"pipe=4", "data=2"}},
      {"pipeline_pairs", {"pipe=2", "data=4"}},
      {"tied", {"pipe=4", "data=2", "layers=wte,pos,-,pos,-,wte", "cuts=0,2,3,5,6"}},
      {"parameter_parallel", {"size=4"}},
      {"secondary_shard", {"size=2"}},
      {"local_global", {"devices_per_node=4"}},
      {"mics", {"shard=4", "devices_per_node=2", "hierarchical=yes"}},
      {"megatron", {"tp=2", "dp=2", "pp=2", "families=tp,dp,pp,tp-pp,dp-tp"}},
      {"megatron_embedding", {"tp=2", "pp=4"}},
      {"ep_folding", {"pp=2", "tp=2", "ep=4"}},
  };
  return all;
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// Sums 2^rank over the group: each member once, and nobody else.
void expect_reduces_as_planned(const Group& group, const RankSet& planned) {
  std::int64_t sum = 0;
  for (const std::int64_t member : planned.to_vector()) sum += std::int64_t{1} << member;
  const std::int64_t self = group.world_rank(group.rank());
  at::Tensor tensor = at::full({3}, std::int64_t{1} << self, at::kLong);
  all_reduce_(tensor, group).wait();
  expect(tensor.equal(at::full({3}, sum, at::kLong)), "all_reduce through " + group.name());
  tensor.fill_(100 + self);
  broadcast_(tensor, group, *group.group_rank(planned.first())).wait();
  expect(tensor.equal(at::full({3}, 100 + planned.first(), at::kLong)),
         "broadcast through " + group.name());
}

void make_all_plans_live(World& world) {
  for (const Asked& each : asked()) {
    const GroupPlan plan = plan_by_name(each.name, world.size(), each.settings);
    const GroupSet groups(world, plan);
    std::int64_t mine = 0;
    for (std::int64_t index = 0; index < plan.size(); ++index) {
      const PlannedGroup planned = plan.group(index);
      if (!planned.ranks.contains(world.rank())) continue;
      const Group& group = groups.groups()[static_cast<std::size_t>(mine++)];
      expect(group.name() == planned.name && group.members() == planned.ranks,
             each.name + ": place of " + planned.name);
      expect_reduces_as_planned(groups.group(planned.name), planned.ranks);
    }
    expect(mine == static_cast<std::int64_t>(groups.groups().size()), each.name + ": count");
    for (const std::string& family : plan.families()) {
      const auto planned = plan.own_ranks(family, world.rank());
      expect(groups.has_own(family) == planned.has_value(), each.name + ": has " + family);
      if (planned) expect(groups.own(family).members() == *planned, each.name + ": own " + family);
    }
    groups.warm_up(milliseconds(20'000));
  }
}

class GroupSetOver : public testing::TestWithParam<Backend> {
 protected:
  WorldOptions options(milliseconds timeout = milliseconds(30'000)) const {
    return {.backend = GetParam(), .timeout = timeout, .log = nullptr};
  }

  // What every rank says that gets its plan from `plan_of`.
  std::vector<std::string> errors_of(const std::function<GroupPlan(std::int64_t)>& plan_of) const {
    std::vector<std::string> errors(kRanks);
    run_ranks(
        kRanks,
        [&](World& world) {
          try {
            const GroupSet groups(world, plan_of(world.rank()));
            errors[static_cast<std::size_t>(world.rank())] = "no error";
          } catch (const ConfigError& error) {
            errors[static_cast<std::size_t>(world.rank())] = error.what();
          }
        },
        options());
    return errors;
  }
};

INSTANTIATE_TEST_SUITE_P(, GroupSetOver, testing::Values(Backend::host, Backend::gloo),
                         [](const auto& backend) { return std::string(to_string(backend.param)); });

TEST_P(GroupSetOver, ReducesAndBroadcastsThroughEveryGroupOfEveryPlan) {
  for (const NamedPlan& plan : named_plans()) {
    EXPECT_TRUE(std::any_of(asked().begin(), asked().end(),
                            [&](const Asked& each) { return each.name == plan.name; }))
        << plan.name;
  }
  run_ranks(kRanks, make_all_plans_live, options());
}

TEST_P(GroupSetOver, SaysOnEveryRankWhatDiffersFirstWhenOneRankHasAnotherPlan) {
  const auto differing = [&](const GroupPlan& usual, const GroupPlan& odd) {
    const auto errors = errors_of([&](std::int64_t rank) { return rank == 3 ? odd : usual; });
    for (const std::string& error : errors) EXPECT_EQ(error, errors.front());
    return errors.front();
  };
  const GroupPlan usual = model_data_plan(kRanks, 2);
  EXPECT_THAT(differing(usual, model_data_plan(kRanks, 4)),
              AllOf(HasSubstr("first in entry 2"), HasSubstr("'data=[0,4]"), HasSubstr("on rank 3"),
                    HasSubstr("'data=[0,2,4,6]"), HasSubstr("on ranks 0,1,2,4,5,6,7")));

  const Family blocks = Grid{{"data", 4}, {"model", 2}}.family({"model"});
  const Family strided = Grid{{"data", 4}, {"model", 2}}.family({"data"});
  GroupPlan other_order(kRanks), other_name(kRanks);
  other_order.add("model", blocks);
  other_order.add("data", strided);
  EXPECT_THAT(differing(usual, other_order),
              AllOf(HasSubstr("first in entry 2"), HasSubstr("'model=[0,1]"), HasSubstr("'data=")));
  other_name.add("data", strided);
  other_name.add("tensor", blocks);
  EXPECT_THAT(differing(usual, other_name),
              AllOf(HasSubstr("first in entry 3"), HasSubstr("'tensor=[0,1]"), HasSubstr("'model=")));
  GroupPlan shorter(kRanks);
  shorter.add("data", strided);
  EXPECT_THAT(differing(usual, shorter), AllOf(HasSubstr("first in entry 3"), HasSubstr("nothing on rank 3")));
}

TEST_P(GroupSetOver, RefusesAPlanForMoreRanksThanThereAre) {
  for (const std::string& error : errors_of([](std::int64_t) { return model_data_plan(16, 2); }))
    EXPECT_THAT(error, HasSubstr("but the world has 8"));
}

TEST_P(GroupSetOver, NamesTheGroupsThatDoNotConnect) {
  std::vector<std::string> errors(kRanks);
  std::atomic<int> ended = 0;
  run_ranks(
      kRanks,
      [&](World& world) {
        const GroupSet groups(world, model_data_plan(kRanks, 4));
        if (world.rank() != 6) {  // who stays in the world but never comes
          try {
            groups.warm_up(milliseconds(400));
          } catch (const CommError& error) {
            errors[static_cast<std::size_t>(world.rank())] = error.what();
          }
          ++ended;
        }
        while (ended < kRanks - 1) std::this_thread::sleep_for(milliseconds(1));
      },
      options());
  EXPECT_THAT(errors[2], HasSubstr("1 of 2 groups did not connect: data[2] [2,6]; "));
  EXPECT_THAT(errors[5], HasSubstr("1 of 2 groups did not connect: model[1] [4,5,6,7]; "));
}

TEST_P(GroupSetOver, OpensOneCommunicatorForEqualSetsAndNoneForSingletons) {
  run_ranks(
      4,
      [](World& world) {
        const GroupSet groups(world, layout_plan(Layout({.pipe = 2, .data = 2}, 4)));
        expect(groups.num_communicators() == 2, "communicators");
        const GroupSet all(world, plan_by_name("parameter_parallel", 4, {}));
        expect(all.num_communicators() == 0, "the world's communicator is there already");
        expect(groups.own("context").size() == 1, "singleton");
      },
      options());
}

std::int64_t count_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

// Groups over pairs and larger sets, made and dropped in random order, without end.
TEST_P(GroupSetOver, MakesAThousandGroupsWithoutGrowingDescriptorsOrThreads) {
  struct Figures {
    std::int64_t descriptors, threads;
  };
  std::vector<Figures> rounds;
  std::atomic<std::int64_t> made = 0;
  run_ranks(
      kRanks,
      [&](World& world) {
        std::mt19937 random(static_cast<unsigned>(world.rank()));
        for (int round = 0; round < 8; ++round) {
          std::vector<GroupSet> sets;
          for (const Asked& each : asked())
            sets.emplace_back(world, plan_by_name(each.name, world.size(), each.settings));
          for (const GroupSet& set : sets) {
            set.warm_up(milliseconds(20'000));
            made += static_cast<std::int64_t>(set.groups().size());
          }
          std::shuffle(sets.begin(), sets.end(), random);
          while (!sets.empty()) sets.pop_back();
          barrier(world.group()).wait();
          if (world.rank() == 0)
            rounds.push_back({count_of("/proc/self/fd"), count_of("/proc/self/task")});
          barrier(world.group()).wait();
        }
      },
      options());
  std::cout << made << " groups of " << kRanks << " ranks; descriptors " << rounds.front().descriptors
            << " after the first round, " << rounds.back().descriptors << " after the last; threads "
            << rounds.front().threads << ", " << rounds.back().threads << "\n";
  EXPECT_GE(made, 8'000);  // a thousand by each rank
  EXPECT_LE(rounds.back().descriptors, rounds.front().descriptors);
  EXPECT_LE(rounds.back().threads, rounds.front().threads);
}

TEST(GroupSet, ListsWhatThereIsWhenANameIsUnknown) {
  run_ranks(2, [](World& world) {
    const GroupSet groups(world, model_data_plan(2, 2));
    const auto error = [](const std::function<void()>& action) {
      try {
        action();
      } catch (const ConfigError& caught) {
        return std::string(caught.what());
      }
      return std::string("no error");
    };
    const std::string name = error([&] { groups.group("data[7]"); });
    expect(name.find("no group 'data[7]'; its groups are data[" + std::to_string(world.rank()) +
                     "], model[0]") != std::string::npos,
           name);
    const std::string family = error([&] { groups.own("pipe"); });
    expect(family.find("no family 'pipe'; expected one of data, model") != std::string::npos, family);
  }, {.log = nullptr});
}

TEST(GroupSet, TellsARankOutsideThatItTakesNoPart) {
  run_ranks(4, [](World& world) {
    const GroupSet groups(world, plan_by_name("inference_model", 4, std::vector<std::string>{"sizes=2"}));
    expect(groups.has_own("tp_size_2") == (world.rank() < 2), "has_own");
    if (world.rank() < 2) return;
    try {
      groups.own("tp_size_2");
    } catch (const ConfigError& error) {
      expect(std::string(error.what()).find("is in no group of the family 'tp_size_2'") != std::string::npos, error.what());
      return;
    }
    throw std::runtime_error("no error");
  }, {.log = nullptr});
}

TEST(GroupSet, LogsOnceOnRankZeroWhatWasMade) {
  std::mutex mutex;
  std::vector<std::string> lines;
  const LogSink sink = [&](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  };
  run_ranks(4, [](World& world) { const GroupSet groups(world, model_data_plan(4, 2)); }, {.log = sink});
  EXPECT_THAT(lines, testing::ElementsAre(
                         "[rank 0] groups: data 2, model 2 over 4 ranks; rank 0 is in 2 and opens 2 communicators"));
}

}  // namespace
}  // namespace espalier
