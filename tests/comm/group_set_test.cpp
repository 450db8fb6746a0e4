// SPDX-License-Identifier: Apache-2.0
// Group plans that come alive on 8 ranks as threads, over each backend: what their groups do, and
// what is said when ranks differ, stay away, or ask for what there is not.
#include "espalier/comm/group_set.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "espalier/comm/collectives.hpp"
#include "espalier/comm/mesh.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/comm/world_state.hpp"
#include "espalier/plan/groups/model_data.hpp"
#include "espalier/plan/groups/named_plans.hpp"
#include "tests/comm/live_plans.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/expect.hpp"

namespace espalier {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::expect;

constexpr std::int64_t kRanks = 8;

WorldOptions quiet(LogSink sink = nullptr) { return {.backend = Backend::host, .log = std::move(sink)}; }

class GroupSetOver : public testing::TestWithParam<Backend> {
 protected:
  WorldOptions options(milliseconds timeout = milliseconds(30'000)) const {
    return {.backend = GetParam(), .timeout = timeout, .log = nullptr};
  }

  // What each rank says that makes the plan `plan_of` it.
  std::vector<std::string> errors_of(const std::function<GroupPlan(std::int64_t)>& plan_of) const {
    std::vector<std::string> errors(kRanks);
    run_ranks(
        kRanks,
        [&](World& world) {
          errors[static_cast<std::size_t>(world.rank())] =
              testing_support::error_of([&] { const GroupSet groups(world, plan_of(world.rank())); });
        },
        options());
    return errors;
  }

  // What each rank says in the action that `prepare` gives it. Rank 6 prepares too, stays in the
  // world, and never comes to the action.
  std::vector<std::string> errors_without_rank_6(const std::function<std::function<void()>(World&)>& prepare) const {
    std::vector<std::string> errors(kRanks);
    std::atomic<int> ended = 0;
    run_ranks(
        kRanks,
        [&](World& world) {
          const std::function<void()> action = prepare(world);
          if (world.rank() != 6) {
            errors[static_cast<std::size_t>(world.rank())] = testing_support::error_of(action);
            ++ended;
          }
          while (ended < kRanks - 1) std::this_thread::sleep_for(milliseconds(1));
        },
        options(milliseconds(2'000)));
    return errors;
  }
};

INSTANTIATE_TEST_SUITE_P(, GroupSetOver, testing::Values(Backend::host, Backend::gloo),
                         [](const auto& backend) { return std::string(to_string(backend.param)); });

TEST_P(GroupSetOver, CommunicatesAsPlannedThroughEveryGroupOfEveryPlan) {
  run_ranks(kRanks, testing_support::use_every_plan, options());
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

TEST_P(GroupSetOver, NamesTheRankThatNeverComes) {
  const auto errors = errors_without_rank_6(
      [](World& world) { return [&world] { const GroupSet groups(world, model_data_plan(kRanks, 2)); }; });
  for (const std::size_t rank : {0, 1, 2, 3, 4, 5, 7})
    EXPECT_THAT(errors[rank], AllOf(HasSubstr("timed out after"), HasSubstr("waiting for rank 6")));
}

TEST_P(GroupSetOver, NamesTheGroupsThatDoNotConnect) {
  const auto errors = errors_without_rank_6([](World& world) {
    const GroupSet groups(world, model_data_plan(kRanks, 4));
    return [groups] { groups.warm_up(milliseconds(400)); };
  });
  EXPECT_THAT(errors[2], HasSubstr("1 of 2 groups did not connect: data[2] [2,6]; "));
  EXPECT_THAT(errors[5], HasSubstr("1 of 2 groups did not connect: model[1] [4,5,6,7]; "));
  EXPECT_EQ(errors[0], "no error");
}

TEST_P(GroupSetOver, OpensOneCommunicatorForEqualSetsAndNoneForSingletons) {
  run_ranks(
      4,
      [](World& world) {
        const GroupSet groups(world, layout_plan(Layout({.pipe = 2, .data = 2}, 4)));
        expect(groups.num_communicators() == 2, "communicators");
        expect(groups.own("context").size() == 1, "singleton");
        const auto communicator = [](const Group& group) { return group.state().communicator.get(); };
        expect(communicator(groups.own("context")) == nullptr, "singleton's communicator");
        expect(communicator(groups.own("data")) == communicator(groups.own("data_context")), "equal sets");
        expect(communicator(groups.own("data")) != communicator(groups.own("pipe")), "other sets");
        const GroupSet all(world, plan_by_name("parameter_parallel", 4, {}));
        expect(all.num_communicators() == 0, "the world's communicator is there already");
        expect(communicator(all.own("parameter_parallel")) == communicator(world.group()), "world");
      },
      options());
}

// What this process holds.
struct Figures {
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;
  std::int64_t bytes = 0;  // allocated, of all threads
};

Figures figures_now() {
  const auto count = [](const char* folder) {
    return static_cast<std::int64_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
  };
  const auto memory = ::mallinfo2();
  return {count("/proc/self/fd"), count("/proc/self/task"), static_cast<std::int64_t>(memory.uordblks + memory.hblkhd)};
}

void expect_no_growth(const std::string& what, const Figures& first, const Figures& last) {
  std::cout << what << ": descriptors " << first.descriptors << ", at the end " << last.descriptors << "; threads "
            << first.threads << ", " << last.threads << "; bytes allocated " << first.bytes << ", " << last.bytes
            << "\n";
  EXPECT_LE(last.descriptors, first.descriptors) << what;
  EXPECT_LE(last.threads, first.threads) << what;
  // What threads keep of freed memory for themselves counts as allocated; a communicator that leaked would be far more.
  EXPECT_LE(last.bytes, first.bytes + (4 << 20)) << what;
}

// All ranks make the sets in one random order, then each drops them in an order of its own.
std::int64_t make_and_drop(World& world, unsigned round) {
  std::vector<testing_support::AskedPlan> plans = testing_support::asked_plans(world.size());
  std::mt19937 shared(round), own(static_cast<unsigned>(100 * round + world.rank()));
  std::shuffle(plans.begin(), plans.end(), shared);
  std::vector<GroupSet> sets;
  std::vector<Group> groups;
  for (const auto& each : plans) {
    sets.emplace_back(world, plan_by_name(each.name, world.size(), each.settings));
    groups.insert(groups.end(), sets.back().groups().begin(), sets.back().groups().end());
  }
  const auto made = static_cast<std::int64_t>(groups.size());
  std::shuffle(sets.begin(), sets.end(), own);
  std::shuffle(groups.begin(), groups.end(), own);
  while (!sets.empty()) sets.pop_back();
  while (!groups.empty()) groups.pop_back();
  return made;
}

TEST_P(GroupSetOver, MakesAndClosesAThousandGroupsInRandomOrderWithoutGrowing) {
  std::vector<Figures> rounds;
  std::atomic<std::int64_t> made = 0;
  run_ranks(
      kRanks,
      [&](World& world) {
        for (unsigned round = 0; round < 14; ++round) {
          made += make_and_drop(world, round);
          barrier(world.group()).wait();
          if (world.rank() == 0) rounds.push_back(figures_now());
          barrier(world.group()).wait();
        }
      },
      options());
  EXPECT_GE(made, 1000 * kRanks);
  expect_no_growth(std::to_string(made / kRanks) + " groups on each rank of one world", rounds.front(), rounds.back());
}

TEST_P(GroupSetOver, GivesEverythingBackWithItsWorld) {
  std::vector<Figures> worlds;
  for (unsigned round = 0; round < 5; ++round) {
    run_ranks(
        kRanks,
        [&](World& world) {
          make_and_drop(world, round);
          const Group outlives_its_sets = world.group().duplicate("more");
          barrier(outlives_its_sets).wait();
        },
        options());
    worlds.push_back(figures_now());
  }
  expect_no_growth("5 worlds one after another", worlds.front(), worlds.back());
}

TEST(GroupSet, ListsWhatThereIsWhenANameIsUnknown) {
  run_ranks(
      2,
      [](World& world) {
        const GroupSet groups(world, model_data_plan(2, 2));
        const auto expect_says = [](const std::function<void()>& action, const std::string& text) {
          const std::string error = testing_support::error_of(action);
          expect(error.find(text) != std::string::npos, error);
        };
        const std::string rank = std::to_string(world.rank());
        expect_says([&] { groups.group("data[7]"); }, "rank " + rank +
                                                          " has no group 'data[7]'; its groups are "
                                                          "data[" +
                                                          rank + "], model[0]");
        expect_says([&] { groups.own("pipe"); }, "no family 'pipe'; expected one of data, model");
      },
      quiet());
}

TEST(GroupSet, TellsARankOutsideThatItTakesNoPart) {
  run_ranks(
      4,
      [](World& world) {
        const GroupSet groups(world, plan_by_name("inference_model", 4, std::vector<std::string>{"sizes=2"}));
        expect(groups.has_own("tp_size_2") == (world.rank() < 2), "has_own");
        if (world.rank() < 2) return;
        const std::string error = testing_support::error_of([&] { groups.own("tp_size_2"); });
        expect(error.find("is in no group of the family 'tp_size_2'") != std::string::npos, error);
      },
      quiet());
}

// What all of 4 ranks log in `body`; `host_of_rank` as if they were on several hosts.
std::vector<std::string> log_of(const std::function<void(const World&)>& body, std::vector<std::int64_t> host_of_rank) {
  std::mutex mutex;
  std::vector<std::string> lines;
  const LogSink sink = [&](LogLevel level, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.push_back(std::string(to_string(level)) + " " + std::string(line));
  };
  run_ranks(
      4,
      [&](World& world) {
        const auto& core = world.state().core;
        detail::Place place = core->place;
        place.host_of_rank = host_of_rank;
        body(detail::make_world(place, core->transport, quiet(sink)));
      },
      quiet());
  return lines;
}

void make_groups(const World& world) { const GroupSet groups(world, model_data_plan(4, 2)); }
void make_mesh(const World& world) { const Mesh mesh(world, {.data = 2, .tensor = 2}); }

TEST(GroupSet, LogsOnceOnRankZeroWhatWasMade) {
  EXPECT_THAT(log_of(make_groups, {}), testing::ElementsAre("info [rank 0] groups: data 2, model 2 over 4 ranks; 2 "
                                                            "communicators of rank 0 besides the world's"));
}

TEST(GroupSet, WarnsOnRankZeroOfGroupsThatCrossHostsWithoutNeed) {
  const auto lines = log_of(make_groups, {0, 1, 0, 1});
  ASSERT_EQ(lines.size(), 2);
  EXPECT_THAT(lines[1], HasSubstr("warning [rank 0] warning: groups: model: 2 of 2 groups cross "
                                  "hosts, [0,1] first"));
  EXPECT_EQ(log_of(make_groups, {0, 0, 1, 1}).size(), 1);
  EXPECT_THAT(log_of(make_mesh, {0, 1, 0, 1}),
              testing::ElementsAre(HasSubstr("tensor, model, expert_tensor, expert_model: 2 of 2")));
  EXPECT_THAT(log_of(make_mesh, {0, 0, 1, 1}), testing::IsEmpty());
}

}  // namespace
}  // namespace espalier
