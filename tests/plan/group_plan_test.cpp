// SPDX-License-Identifier: Apache-2.0
// What holds for every group plan; that each has DeepSpeed's and Megatron's sets is checked by
// oracle_check.
#include "espalier/plan/groups/group_plan.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "espalier/plan/groups/expert_data.hpp"
#include "espalier/plan/groups/expert_data_model.hpp"
#include "espalier/plan/groups/host_crossings.hpp"
#include "espalier/plan/groups/inference.hpp"
#include "espalier/plan/groups/megatron.hpp"
#include "espalier/plan/groups/model_data.hpp"
#include "espalier/plan/groups/pipeline_grid.hpp"
#include "espalier/plan/groups/tied.hpp"
#include "espalier/plan/groups/zero.hpp"
#include "tests/support/expect_error.hpp"

namespace espalier {
namespace {

using Ranks = std::vector<std::int64_t>;

std::vector<Ranks> lists(const GroupPlan& plan) {
  std::vector<Ranks> all;
  for (std::int64_t i = 0; i < plan.size(); ++i) all.push_back(plan.group(i).ranks.to_vector());
  return all;
}

// Each family of the plan holds each rank once; own() finds it; members ascend.
void expect_partitions(const GroupPlan& plan) {
  for (const std::string& family : plan.families()) {
    std::vector<int> seen(plan.world_size());
    for (std::int64_t i = 0; i < plan.size(); ++i) {
      const PlannedGroup group = plan.group(i);
      if (!group.name.starts_with(family + "[")) continue;
      std::int64_t previous = -1;
      for (std::int64_t rank : group.ranks.to_vector()) {
        ASSERT_LT(previous, rank);
        previous = rank;
        ++seen[rank];
        ASSERT_EQ(plan.own(family, rank), i) << group.name << " rank " << rank;
      }
    }
    ASSERT_THAT(seen, testing::Each(1)) << family;
  }
}

TEST(GroupPlan, PartitionsTheWorldByEveryFamilyOfEveryBuilder) {
  for (std::int64_t world : {1, 2, 6, 12, 16}) {
    for (std::int64_t a = 1; a <= world; ++a) {
      if (world % a != 0) continue;
      expect_partitions(model_data_plan(world, a));
      expect_partitions(parameter_parallel_plan(world, a));
      expect_partitions(secondary_shard_plan(world, a));
      expect_partitions(local_global_plan(world, a));
      expect_partitions(inference_expert_plan(world, Ranks{a, 1}));
      const ProcessTopology topology = ProcessTopology::pipe_data(a, world / a);
      expect_partitions(PipelineGrid(topology).plan());
      for (std::int64_t b = 1; a * b <= world; ++b) {
        if (world / a % b != 0) continue;
        if (world % (a * b) == 0 && a > 1) {
          expect_partitions(mics_plan(world, {.shard = a * b, .devices_per_node = b, .hierarchical = true}));
        }
        for (ExpertOrder order : {ExpertOrder::expert_first, ExpertOrder::data_first}) {
          expect_partitions(expert_data_plan(world, {.expert = b, .pipe = a, .order = order}));
          const Layout layout({.pipe = a, .data = kRest, .tensor = b}, world);
          for (std::int64_t expert_tensor : {std::int64_t{0}, std::int64_t{1}}) {
            const std::int64_t lane = world / a / (expert_tensor == 0 ? b : 1);
            expect_partitions(
                expert_data_model_plan(layout, {.expert = lane, .order = order, .expert_tensor = expert_tensor}));
          }
        }
        for (ModelLanes lanes : {ModelLanes::tensor, ModelLanes::sequence, ModelLanes::folded}) {
          expect_partitions(expert_data_plan(
              world,
              {.expert = world / a / b, .pipe = a, .variant = ExpertDataVariant::v0_19, .model = b, .lanes = lanes}));
        }
        expect_partitions(ep_folding_plan(world, {.pp = a, .tp = b, .ep = b}));
      }
    }
  }
}

TEST(GroupPlan, KeepsSeveralExpertSizesSideBySide) {
  GroupPlan plan = expert_data_plan(8, {.expert = 2});
  plan.include(expert_data_plan(8, {.expert = 4}));
  plan.include(expert_data_plan(8, {.expert = 2}));
  EXPECT_THAT(plan.families(), testing::ElementsAre("ep_size_2.data", "ep_size_2", "ep_size_4.data", "ep_size_4"));
  EXPECT_EQ(plan.own_ranks("ep_size_4", 6)->to_vector(), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(plan.own_ranks("ep_size_2", 6)->to_vector(), (Ranks{6, 7}));
  EXPECT_CONFIG_ERROR(plan.include(expert_data_plan(8, {.expert = 2, .order = ExpertOrder::data_first})),
                      "the family ep_size_2.data is [0,2,4,6] of pipe=1,expert_data=4,expert=2 by pipe,expert, and "
                      "is to be "
                      "[0,1,2,3]");
  EXPECT_CONFIG_ERROR(plan.include(expert_data_plan(4, {.expert = 2})),
                      "a plan of 4 ranks cannot be included in one of 8");
  EXPECT_CONFIG_ERROR(plan.own("ep_size_8", 0),
                      "no family 'ep_size_8'; expected one of ep_size_2.data, ep_size_2, "
                      "ep_size_4.data, ep_size_4");
}

TEST(GroupPlan, NamesGroupsByFamilyAcrossItsPieces) {
  const GroupPlan plan = expert_data_plan(8, {.expert = 2, .pipe = 2, .variant = ExpertDataVariant::v0_19, .model = 2});
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < plan.size(); ++i) names.push_back(plan.group(i).name);
  EXPECT_THAT(names, testing::ElementsAre("ep_size_2[0]", "ep_size_2[1]", "ep_size_2.data[0]", "ep_size_2.data[1]",
                                          "ep_size_2[2]", "ep_size_2[3]", "ep_size_2.data[2]", "ep_size_2.data[3]"));
  EXPECT_EQ(plan.size("ep_size_2"), 4);
  EXPECT_CONFIG_ERROR(plan.group(8), "no group 8; expected 0 to 7");
}

TEST(GroupPlan, MovesToAnySetOfRanks) {
  const GroupPlan plan = model_data_plan(4, 2);
  EXPECT_EQ(lists(plan.on(RankSet::range(8, 4))), (std::vector<Ranks>{{8, 10}, {9, 11}, {8, 9}, {10, 11}}));
  const GroupPlan odd = plan.on(RankSet::of(Ranks{1, 2, 5, 9}));
  EXPECT_EQ(lists(odd), (std::vector<Ranks>{{1, 5}, {2, 9}, {1, 2}, {5, 9}}));
  EXPECT_EQ(odd.own("model", 9), 3);
  EXPECT_EQ(odd.own("model", 3), std::nullopt);
  EXPECT_NE(odd.describe(), plan.describe());
  EXPECT_CONFIG_ERROR(plan.on(RankSet::range(0, 3)), "3 ranks for a plan of 4");
}

TEST(GroupPlan, AnswersInAWorldOfAMillionRanks) {
  const std::int64_t world = 1 << 20;
  GroupPlan plan = expert_data_plan(world, {.expert = 64, .pipe = 16});
  plan.include(PipelineGrid(ProcessTopology::pipe_data_model(16, world / 128, 8)).plan());
  EXPECT_EQ(plan.own_ranks("ep_size_64", world - 1), RankSet::range(world - 64, 64));
  EXPECT_EQ(plan.own_ranks("data", 3)->size(), world / 128);
  EXPECT_EQ(plan.size(), world / 64 + 16 * 64 + world / 128 + 128 + world / 16 + world / 8);
}

TEST(GroupPlan, DescribesEqualPlansAlikeAndOthersDifferently) {
  EXPECT_EQ(model_data_plan(8, 2).describe(), model_data_plan(8, 2).describe());
  EXPECT_THAT(model_data_plan(8, 2).describe(),
              testing::ElementsAre("world=8", "data=[0,2,4,6] of data=4,model=2 by model",
                                   "model=[0,1] of data=4,model=2 by data"));
  EXPECT_NE(model_data_plan(8, 2).describe(), model_data_plan(8, 4).describe());
}

TEST(PipelineGrid, TakesAnySetOfRanksAsItsStages) {
  const PipelineGrid grid(ProcessTopology::pipe_data(2, 2), RankSet::of(Ranks{1, 3, 4, 6}));
  EXPECT_EQ(lists(grid.plan()),
            (std::vector<Ranks>{{1, 4}, {3, 6}, {1, 3}, {4, 6}, {1, 4}, {3, 6}, {1}, {3}, {4}, {6}}));
  EXPECT_EQ(grid.stage_to_global(3, 1), 6);
  EXPECT_EQ(grid.next_stage_rank(6), 3);
  EXPECT_TRUE(grid.is_first_stage(3));
  EXPECT_TRUE(grid.is_last_stage(6));
  EXPECT_CONFIG_ERROR(grid.stage(2), "rank 2 is not one of [1,3,4,6]");
  EXPECT_CONFIG_ERROR(PipelineGrid(ProcessTopology::pipe_data(2, 2), RankSet::range(0, 6)),
                      "pipe=2,data=2 has 4 ranks, but there are 6");
}

TEST(PipelineGrid, PairsNeighbouringStagesWithWrapAround) {
  const GroupPlan pairs = PipelineGrid(ProcessTopology::pipe_data(3, 2)).pair_plan();
  EXPECT_THAT(pairs.families(), testing::ElementsAre("stages_0_1", "stages_1_2", "stages_2_0"));
  EXPECT_EQ(lists(pairs), (std::vector<Ranks>{{0, 2}, {1, 3}, {2, 4}, {3, 5}, {0, 4}, {1, 5}}));
  EXPECT_EQ(pairs.own("stages_0_1", 4), std::nullopt);
  const GroupPlan two = PipelineGrid(ProcessTopology::pipe_data(2, 1)).pair_plan();
  EXPECT_EQ(lists(two), (std::vector<Ranks>{{0, 1}, {0, 1}}));
  EXPECT_CONFIG_ERROR(PipelineGrid(ProcessTopology::pipe_data(1, 4)).pair_plan(), "one stage, which has no neighbours");
}

TEST(TiedPlan, RefusesCutsThatDoNotCoverTheLayers) {
  const ProcessTopology topology = ProcessTopology::pipe_data(2, 1);
  const std::vector<std::string> layers{"wte", "", "wte"};
  EXPECT_CONFIG_ERROR(tied_plan(topology, layers, Ranks{0, 3}), "2 cuts for 2 stages");
  EXPECT_CONFIG_ERROR(tied_plan(topology, layers, Ranks{0, 1, 2}),
                      "the cuts [0,1,2] do not run from 0 to the 3 layers");
  EXPECT_CONFIG_ERROR(tied_plan(topology, layers, Ranks{0, 4, 3}), "the cuts [0,4,3]");
  const TiedPlan plan = tied_plan(topology, layers, Ranks{0, 1, 3});
  EXPECT_EQ(plan.owner("wte", 1), 0);
  EXPECT_TRUE(plan.is_replica("wte", 1));
  EXPECT_FALSE(plan.is_replica("wte", 0));
}

// On random topologies of up to 6 axes: each rank of a stage that holds a key is in one group of it,
// whose members have its coordinates but for the stage, which runs over all that hold the key.
TEST(TiedPlan, HoldsOneRankOfEachStageForAllCoordinatesOfRandomTopologies) {
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::string> axes;
    std::vector<std::int64_t> sizes;
    const std::size_t num_axes = 1 + random() % 6, pipe = random() % num_axes;
    for (std::size_t i = 0; i < num_axes; ++i) {
      axes.push_back(i == pipe ? "pipe" : std::string(1, static_cast<char>('a' + i)));
      sizes.push_back(i == pipe ? 2 + random() % 3 : 1 + random() % 3);
    }
    const ProcessTopology topology(axes, sizes);
    const std::int64_t stages = sizes[pipe];
    std::vector<std::string> layers;
    Ranks cuts;
    for (std::int64_t layer = 0; layer < 2 * stages; ++layer) {  // two layers a stage
      layers.push_back(std::vector<std::string>{"", "wte", "pos"}[random() % 3]);
      if (layer % 2 == 0) cuts.push_back(layer);
    }
    cuts.push_back(2 * stages);
    const TiedPlan plan = tied_plan(topology, layers, cuts);
    for (const TiedKey& key : plan.keys()) {
      Ranks holding;
      for (std::int64_t stage = 0; stage < stages; ++stage) {
        if (layers[2 * stage] == key.key || layers[2 * stage + 1] == key.key) holding.push_back(stage);
      }
      ASSERT_EQ(key.stages, holding);
      for (std::int64_t rank = 0; rank < topology.world_size(); ++rank) {
        Ranks coordinates = topology.coordinates(rank), expected;
        const bool holds = std::count(holding.begin(), holding.end(), coordinates[pipe]) == 1;
        for (const std::int64_t stage : holding) {
          coordinates[pipe] = stage;
          expected.push_back(topology.grid().rank(coordinates));
        }
        const auto own = plan.groups().own_ranks(key.key, rank);
        ASSERT_EQ(own.has_value(), holds) << topology.grid().to_string() << " rank " << rank;
        if (!holds) continue;
        ASSERT_EQ(own->to_vector(), expected) << topology.grid().to_string() << " rank " << rank;
        ASSERT_EQ(plan.owner(key.key, rank), expected.front());
      }
    }
  }
}

TEST(HostCrossings, NameTheFamiliesThatCouldStayInside) {
  const auto on_hosts_of = [](std::int64_t world, std::int64_t size) {
    Ranks hosts;
    for (std::int64_t rank = 0; rank < world; ++rank) hosts.push_back(rank / size);
    return hosts;
  };
  const GroupPlan plan = model_data_plan(12, 4);  // data groups span 9 ranks
  EXPECT_THAT(host_crossings(plan, on_hosts_of(12, 4)), testing::IsEmpty());
  EXPECT_THAT(host_crossings(plan, on_hosts_of(12, 2)), testing::IsEmpty()) << "cannot be helped";
  EXPECT_THAT(
      host_crossings(plan, on_hosts_of(12, 6)),
      testing::ElementsAre(
          "model: 1 of 3 groups crosses hosts, [4,5,6,7] first, though the 4 "
          "ranks from 4 to 7 would fit on one host of 6; let sizes divide the ranks of a host, and give neighbouring "
          "ranks the same host"));
  EXPECT_THAT(host_crossings(model_data_plan(4, 2), Ranks{0, 1, 0, 1}),
              testing::ElementsAre(testing::HasSubstr("model: 2 of 2 groups cross hosts")));
  EXPECT_THAT(host_crossings(model_data_plan(4, 2).on(RankSet::of(Ranks{0, 2, 3, 5})), Ranks{0, 0, 1, 1, 0, 0}),
              testing::ElementsAre(testing::HasSubstr("data: 2 of 2 groups cross hosts, [0,3] first"),
                                   testing::HasSubstr("model: 2 of 2 groups cross hosts, [0,2] first")));
  EXPECT_CONFIG_ERROR(host_crossings(plan, on_hosts_of(8, 4)),
                      "hosts are known of 8 ranks, but the plan has ranks up to 11");
}

TEST(ExpertDataModelPlan, CutsExpertsOverOtherTensorLanesThanTheLayout) {
  const Layout layout({.pipe = 2, .data = 2, .tensor = 4}, 16);
  const GroupPlan plan = expert_data_model_plan(layout, {.expert = 4, .expert_tensor = 1});
  EXPECT_EQ(plan.own_ranks("ep_size_4", 13)->to_vector(), (Ranks{12, 13, 14, 15}));
  EXPECT_EQ(plan.own_ranks("ep_size_4.data", 13)->to_vector(), (Ranks{9, 13}));
  EXPECT_CONFIG_ERROR(
      expert_data_model_plan(layout, {.expert = 4}),
      "expert 4 does not divide a lane (stage 8 / expert_tensor 4, as tensor, since it is not given) of 2; legal "
      "expert values: 1, 2");
  EXPECT_CONFIG_ERROR(
      expert_data_model_plan(Layout({.pipe = 2, .data = 4, .order = "megatron_data_slowest"}, 8), {.expert = 2}),
      "expected blocks of neighbours");
}

TEST(MegatronRanks, SharesTheEmbeddingBetweenFirstAndLastStage) {
  EXPECT_EQ(lists(MegatronRanks({.tp = 2, .pp = 3}).embedding_plan()), (std::vector<Ranks>{{0, 4}, {1, 5}, {0}, {1}}));
  EXPECT_EQ(lists(MegatronRanks({.tp = 2}).embedding_plan()), (std::vector<Ranks>{{0}, {1}, {0}, {1}}));
}

TEST(InferencePlan, GivesEachEngineItsOwnGroupAndTellsOutsidersSo) {
  const GroupPlan plan = inference_model_plan(8, Ranks{2, 4, 2});
  EXPECT_THAT(plan.families(), testing::ElementsAre("tp_size_2", "tp_size_4"));
  EXPECT_EQ(plan.own("tp_size_2", 1), 0);
  EXPECT_EQ(plan.own("tp_size_2", 2), std::nullopt);
  EXPECT_EQ(plan.own_ranks("tp_size_4", 2), RankSet::range(0, 4));
  EXPECT_CONFIG_ERROR(inference_model_plan(2, Ranks{4}), "tensor-parallel size 4 in a world of 2; expected 1 to 2");
}

TEST(GroupPlan, RefusesWithTheLegalValues) {
  EXPECT_CONFIG_ERROR(model_data_plan(6, 4),
                      "model_data: model 4 does not divide the world of 6; legal model values: 1, 2, 3, 6");
  EXPECT_CONFIG_ERROR(model_data_plan(4, 8), "model 8 does not divide the world of 4");
  EXPECT_CONFIG_ERROR(model_data_plan(0, 1), "the world is 0; expected at least 1");
  EXPECT_CONFIG_ERROR(expert_data_plan(8, {.expert = 2, .pipe = 3}),
                      "pipe 3 does not divide the world of 8; legal pipe values: 1, 2, 4, 8");
  EXPECT_CONFIG_ERROR(expert_data_plan(8, {.expert = 2, .pipe = 2, .variant = ExpertDataVariant::seed}),
                      "knows no stages");
  EXPECT_CONFIG_ERROR(local_global_plan(20, 8),
                      "20 ranks fill 2 nodes of 8 devices and leave 4 over; expected whole nodes: "
                      "start 16 or 24 ranks");
  EXPECT_CONFIG_ERROR(parameter_parallel_plan(8, 0), "size 0 does not divide the world of 8");
  EXPECT_CONFIG_ERROR(mics_plan(8, {.shard = 4, .devices_per_node = 4, .hierarchical = true}),
                      "not two or more whole nodes of 4 devices");
  EXPECT_CONFIG_ERROR(GroupPlan(2).add("all", RankSet::range(0, 3)), "has ranks up to 2, but the world has 2");
}

}  // namespace
}  // namespace espalier
