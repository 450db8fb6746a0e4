// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/layout/layout.hpp"

#include <gmock/gmock.h>

#include <set>

#include "tests/support/expect_error.hpp"

namespace espalier {
namespace {

using Ranks = std::vector<std::int64_t>;
using testing::ElementsAre;

std::vector<Ranks> lists(const Layout& layout, std::string_view family) {
  std::vector<Ranks> all;
  const Family sets = layout.family(family);
  for (std::int64_t i = 0; i < sets.size(); ++i) all.push_back(sets.set(i).to_vector());
  return all;
}

TEST(Layout, NamesTheGroupsOfPipeDataTensor) {
  const Layout layout({.pipe = 2, .data = 2, .tensor = 2}, 8);
  EXPECT_EQ(lists(layout, "data"), (std::vector<Ranks>{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(lists(layout, "tensor"), (std::vector<Ranks>{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(lists(layout, "pipe"), (std::vector<Ranks>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(lists(layout, "model"), (std::vector<Ranks>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(lists(layout, "stage"), (std::vector<Ranks>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(layout.group("data", 7).to_vector(), (Ranks{5, 7}));
  EXPECT_EQ(layout.coordinate("pipe", 6), 1);
  EXPECT_EQ(layout.coordinate("data", 6), 1);
  EXPECT_EQ(layout.coordinate("tensor", 6), 0);
}

TEST(Layout, KeepsExpertGroupsInTheirTensorLaneByDefault) {
  const Layout layout({.data = 8, .tensor = 2, .expert = 4}, 16);
  EXPECT_EQ(layout.size("expert_tensor"), 2);
  EXPECT_EQ(lists(layout, "expert"),
            (std::vector<Ranks>{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}));
  EXPECT_EQ(layout.group("expert_data", 5).to_vector(), (Ranks{5, 13}));
}

TEST(Layout, LetsAnExplicitExpertTensorOfOneWin) {
  const Layout layout({.data = 4, .tensor = 2, .expert = 4, .expert_tensor = 1}, 8);
  EXPECT_EQ(layout.size("expert_tensor"), 1);
  EXPECT_EQ(layout.group("expert", 5).to_vector(), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(layout.group("expert_data", 5).to_vector(), (Ranks{1, 5}));
  EXPECT_EQ(layout.group("expert_tensor", 5).to_vector(), (Ranks{5}));
  EXPECT_EQ(Layout(Layout::parse("data=4,tensor=4,expert=4,expert_tensor=1"), 16).size("expert_tensor"), 1);
}

TEST(Layout, CutsExpertsOutOfDataAndContext) {
  const Layout layout({.pipe = 2, .data = 2, .context = 2, .expert = 4}, 8);
  EXPECT_EQ(layout.group("expert", 6).to_vector(), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(layout.group("context", 6).to_vector(), (Ranks{6, 7}));
  EXPECT_EQ(layout.group("data_context", 6).to_vector(), (Ranks{4, 5, 6, 7}));
}

TEST(Layout, PutsReplicasOfAnExpertSideBySideInTheDataFirstOrder) {
  const Layout layout({.data = 8, .expert = 2, .order = "deepspeed_data_first"}, 8);
  EXPECT_EQ(lists(layout, "expert"), (std::vector<Ranks>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(lists(layout, "expert_data"), (std::vector<Ranks>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(Layout, InfersTheAxisThatIsTheRest) {
  EXPECT_EQ(Layout({.pipe = 2, .data = kRest, .tensor = 2}, 16).size("data"), 4);
  EXPECT_EQ(Layout({.pipe = kRest, .data = 4}, 4).size("pipe"), 1);
  EXPECT_EQ(Layout({.data = 4, .tensor = kRest}, 8).size("expert_tensor"), 2);
  EXPECT_EQ(Layout({.data = 4, .tensor = 2, .expert = kRest, .expert_tensor = 1}, 8).size("expert"), 8);
  EXPECT_EQ(Layout({.data = 4, .tensor = 2, .expert = 2, .expert_tensor = kRest}, 8).size("expert_tensor"), 4);
}

TEST(Layout, ReadsTextInAnyOrderOfKeys) {
  const LayoutSpec spec = Layout::parse("data=4,tensor=rest,pipe=2,order=data-pipe-context-tensor");
  EXPECT_EQ(spec.data, 4);
  EXPECT_EQ(spec.tensor, kRest);
  EXPECT_EQ(spec.pipe, 2);
  EXPECT_EQ(spec.expert_tensor, 0);
  const Layout layout(spec, 16);
  EXPECT_THAT(layout.describe(), ElementsAre("world=16", "order=data-expert-pipe-context-tensor", "pipe=2", "data=4",
                                             "context=1", "tensor=2", "expert=1", "expert_data=4", "expert_tensor=2"));
  EXPECT_EQ(layout.to_string(), "pipe=2,data=4,tensor=2,order=data-expert-pipe-context-tensor");
  EXPECT_EQ(Layout(Layout::parse(layout.to_string()), 16).describe(), layout.describe());
  EXPECT_EQ(Layout({}, 1).to_string(), "data=1");
}

TEST(Layout, RefusesSizesThatDoNotMultiplyToTheWorld) {
  EXPECT_CONFIG_ERROR(Layout({.pipe = 2, .data = 3, .tensor = 4}, 16),
                      "layout: pipe 2 x data 3 x tensor 4 = 24 ranks, but the world has 16; legal "
                      "data values for pipe 2, "
                      "tensor 4: 2; or start 24 ranks");
  EXPECT_CONFIG_ERROR(Layout({.tensor = 2}, 1), "tensor 2 = 2 ranks, but the world has 1; legal tensor values: 1");
  EXPECT_CONFIG_ERROR(Layout({}, 4), "every size is 1: 1 ranks, but the world has 4; legal data values: 4");
  EXPECT_CONFIG_ERROR(Layout({.pipe = 3, .data = kRest}, 16),
                      "pipe 3 = 3 ranks do not divide the world of 16, so nothing is left for "
                      "data; legal pipe values: 1, 2, 4, 8, 16");
  EXPECT_CONFIG_ERROR(Layout({.data = std::int64_t{1} << 40, .tensor = std::int64_t{1} << 40}, 4), "64 bits");
}

TEST(Layout, RefusesExpertSizesThatDoNotCutAStage) {
  EXPECT_CONFIG_ERROR(Layout({.pipe = 2, .data = 2, .tensor = 2, .expert = 8, .expert_tensor = 1}, 8),
                      "expert 8 x expert_tensor 1 does not divide the 4 ranks of a stage (data 2 x context 1 x "
                      "tensor 2); "
                      "legal expert values for expert_tensor 1: 1, 2, 4");
  EXPECT_CONFIG_ERROR(Layout({.data = 4, .tensor = 2, .expert = 8}, 8),
                      "expert 8 x expert_tensor 2 (as tensor, since it is not given) does not divide the 8 ranks of a "
                      "stage (data 4 x context 1 x tensor 2); legal expert values for expert_tensor 2: 1, 2, 4; legal "
                      "expert_tensor values for expert 8: 1");
  EXPECT_CONFIG_ERROR(Layout({.data = 8, .expert_tensor = 3}, 8), "legal expert_tensor values: 1, 2, 4, 8");
  EXPECT_CONFIG_ERROR(Layout({.data = 8, .expert = 3, .expert_tensor = kRest}, 8), "legal expert values: 1, 2, 4, 8");
}

TEST(Layout, SaysWhereEachSizeComesFrom) {
  const Layout layout({.pipe = 2, .data = kRest, .tensor = 2, .expert = 2}, 16);
  EXPECT_EQ(layout.origin("pipe"), "given");
  EXPECT_EQ(layout.origin("data"), "rest");
  EXPECT_EQ(layout.origin("context"), "given");  // 1
  EXPECT_EQ(layout.origin("expert_tensor"), "as tensor");
  EXPECT_EQ(layout.origin("expert_data"), "left");
  EXPECT_EQ(Layout({.tensor = 2, .expert_tensor = 1}, 2).origin("expert_tensor"), "given");
  EXPECT_EQ(Layout({.data = 4, .expert = 2, .expert_tensor = kRest}, 4).origin("expert_tensor"), "rest");
  EXPECT_CONFIG_ERROR(static_cast<void>(layout.origin("dta")), "no axis 'dta'");
}

TEST(Layout, RefusesOrdersInWhichExpertsWouldHaveOtherStages) {
  EXPECT_CONFIG_ERROR(Layout({.pipe = 2, .data = 4, .expert = 2, .order = "megatron_data_slowest"}, 8),
                      "the stages of data=4,pipe=2,context=1,tensor=1 are 1 ranks apart, but those of "
                      "expert_data=2,pipe=2,expert=2,expert_tensor=1 are 2");
  EXPECT_NO_THROW(Layout({.pipe = 2, .data = 4, .context = 2, .expert = 2, .order = "megatron_data_slowest"}, 16));
  EXPECT_EQ(Layout({.pipe = 2, .data = 2, .context = 2, .order = "megatron_data_slowest"}, 8)
                .group("expert_data", 1)
                .to_vector(),
            (Ranks{0, 1, 4, 5}));  // without experts there is nothing to disagree about
}

TEST(Layout, RefusesWhatItCannotRead) {
  EXPECT_CONFIG_ERROR(Layout::parse("data=4,dta=2"),
                      "no axis 'dta'; expected pipe, data, context, tensor, expert, expert_tensor or order");
  EXPECT_CONFIG_ERROR(Layout::parse("data=4,data=2"), "'data' is given twice");
  EXPECT_CONFIG_ERROR(Layout::parse("data=0"), "data is '0'; expected a whole number from 1, or rest");
  EXPECT_CONFIG_ERROR(Layout::parse("data=-1"), "data is '-1'");
  EXPECT_CONFIG_ERROR(Layout::parse("data=4x"), "data is '4x'");
  EXPECT_CONFIG_ERROR(Layout::parse("data=99999999999999999999"), "data is '9999");
  EXPECT_CONFIG_ERROR(Layout::parse("data"), "'data' in 'data' is not of the form");
  EXPECT_CONFIG_ERROR(Layout::parse(""), "not of the form");
  EXPECT_CONFIG_ERROR(Layout::parse("data=2,"), "not of the form");
  EXPECT_CONFIG_ERROR(Layout::parse("order=pipe-data"), "order 'pipe-data' does not name");
  EXPECT_CONFIG_ERROR(Layout({.data = 0}, 4), "data is 0; expected at least 1");
  EXPECT_CONFIG_ERROR(Layout({.data = kRest, .tensor = kRest}, 4), "both data and tensor are to be the rest");
  EXPECT_CONFIG_ERROR(Layout({}, 0), "the world has 0 ranks");
  const Layout layout({.data = 4}, 4);
  EXPECT_CONFIG_ERROR(layout.size("dta"), "no axis 'dta'");
  EXPECT_CONFIG_ERROR(layout.group("dta", 0), "no family of groups 'dta'; expected one of data, context");
  EXPECT_CONFIG_ERROR(layout.group("data", 4), "rank 4");
}

// Every choice of sizes that fits the world, expert_tensor inherited, 1 or 2.
std::vector<LayoutSpec> specs_for(std::int64_t world) {
  std::vector<LayoutSpec> specs;
  for (std::int64_t pipe = 1; pipe <= world; ++pipe) {
    for (std::int64_t tensor = 1; pipe * tensor <= world; ++tensor) {
      for (std::int64_t context = 1; pipe * tensor * context <= world; ++context) {
        if (world % (pipe * tensor * context) != 0) continue;
        for (std::int64_t expert = 1; pipe * expert <= world; ++expert) {
          for (std::int64_t expert_tensor : {0, 1, 2}) {
            if (world / pipe % (expert * (expert_tensor == 0 ? tensor : expert_tensor)) != 0) continue;
            specs.push_back({.pipe = pipe,
                             .data = kRest,
                             .context = context,
                             .tensor = tensor,
                             .expert = expert,
                             .expert_tensor = expert_tensor});
          }
        }
      }
    }
  }
  return specs;
}

void expect_partition(const Layout& layout, std::string_view family, bool within_stage) {
  const Family sets = layout.family(family);
  std::vector<int> seen(layout.world_size());
  for (std::int64_t i = 0; i < sets.size(); ++i) {
    std::int64_t previous = -1;
    for (std::int64_t rank : sets.set(i).to_vector()) {
      ASSERT_LT(previous, rank);
      previous = rank;
      ++seen[rank];
      ASSERT_EQ(layout.group(family, rank), sets.set(i));
      if (within_stage) {
        ASSERT_EQ(layout.coordinate("pipe", rank), layout.coordinate("pipe", sets.set(i).first()));
      }
    }
  }
  ASSERT_THAT(seen, testing::Each(1)) << family << " of " << layout.to_string();
}

TEST(Layout, PartitionsTheWorldByEveryFamilyAndCutsStagesAlike) {
  int layouts = 0;
  for (const char* order : {"deepspeed", "deepspeed_data_first", "megatron_data_slowest", "tensor-pipe-context-data",
                            "pipe-context-data-expert-tensor"}) {
    for (std::int64_t world : {1, 2, 3, 6, 8, 12, 16}) {
      for (LayoutSpec& spec : specs_for(world)) {
        spec.order = order;
        std::optional<Layout> layout;
        try {
          layout.emplace(spec, world);
        } catch (const ConfigError& error) {
          ASSERT_THAT(error.what(),
                      testing::HasSubstr("expected the same stages for both: make pipe the slowest axis"));
          ASSERT_TRUE(spec.order == "megatron_data_slowest" || spec.order == "tensor-pipe-context-data");
          continue;
        }
        ++layouts;
        for (std::string_view family : layout->families()) {
          expect_partition(*layout, family, family != "pipe" && family != "model" && family != "expert_model");
        }
        for (std::int64_t rank = 0; rank < world; ++rank) {
          ASSERT_EQ(layout->group("expert", rank).size() * layout->group("expert_data", rank).size() *
                        layout->group("expert_tensor", rank).size(),
                    layout->group("stage", rank).size());
        }
      }
    }
  }
  EXPECT_GT(layouts, 1000);
}

}  // namespace
}  // namespace espalier
