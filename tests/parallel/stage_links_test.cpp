// SPDX-License-Identifier: Apache-2.0
// Links between neighbouring stages, by send and by broadcast, over every backend.
#include "espalier/parallel/pipeline/stage_links.hpp"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "espalier/comm/backends/recording/recording.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/parallel/pipeline/executor.hpp"
#include "espalier/plan/schedule/schedules.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/expect.hpp"

namespace espalier {
namespace {

using testing_support::expect;

struct Way {
  Backend backend;
  PointToPoint how;
};

class StageLinksOver : public ::testing::TestWithParam<Way> {
 protected:
  WorldOptions options() const {
    return {.backend = GetParam().backend, .timeout = std::chrono::seconds(30), .log = nullptr};
  }
};

INSTANTIATE_TEST_SUITE_P(
    , StageLinksOver,
    ::testing::Values(Way{Backend::host, PointToPoint::send}, Way{Backend::host, PointToPoint::broadcast},
                      Way{Backend::gloo, PointToPoint::send}, Way{Backend::gloo, PointToPoint::broadcast}),
    [](const auto& way) {
      return std::string(to_string(way.param.backend)) + "_" + std::string(to_string(way.param.how));
    });

// What stage `from` sends over one of its links.
at::Tensor value(std::int64_t from, Neighbour over) {
  return at::full({3}, 10 * from + (over == Neighbour::next ? 1 : 2), at::kLong);
}

// Once around the ring in both directions at a time, under one tag. With two stages both neighbours are one rank.
TEST_P(StageLinksOver, ReachBothNeighboursAroundTheRing) {
  for (const std::int64_t stages : {2, 3, 4}) {
    run_ranks(
        stages,
        [&](World& world) {
          const StageLinks links(world, world.group(), GetParam().how);
          expect(links.by_broadcast() == (GetParam().how == PointToPoint::broadcast), "by broadcast");
          const std::int64_t stage = world.rank();
          at::Tensor from_previous = at::zeros({3}, at::kLong), from_next = at::zeros({3}, at::kLong);
          std::vector<Work> works;
          works.push_back(links.send(value(stage, Neighbour::next), Neighbour::next, {.micro_batch = 5}));
          works.push_back(links.recv(from_previous, Neighbour::previous, {.micro_batch = 5}));
          works.push_back(links.send(value(stage, Neighbour::previous), Neighbour::previous, {.micro_batch = 5}));
          works.push_back(links.recv(from_next, Neighbour::next, {.micro_batch = 5}));
          wait_all(works);
          expect(from_previous.equal(value((stage + stages - 1) % stages, Neighbour::next)), "from the previous stage");
          expect(from_next.equal(value((stage + 1) % stages, Neighbour::previous)), "from the next stage");
        },
        options());
  }
}

TEST_P(StageLinksOver, CarryWhatWasInTheTensorWhenItWasSent) {
  run_ranks(
      2,
      [&](World& world) {
        const StageLinks links(world, world.group(), GetParam().how);
        at::Tensor tensor = at::full({1000}, 7 * (1 - world.rank()), at::kInt);
        if (world.rank() == 0) {
          Work sending = links.send(tensor, Neighbour::next, {});
          tensor.fill_(1);
          sending.wait();
        } else {
          links.recv(tensor, Neighbour::previous, {}).wait();
          expect(tensor.eq(7).all().item<bool>(), "changed on the way");
        }
      },
      options());
}

TEST_P(StageLinksOver, CarryJsonValues) {
  const std::vector<std::string> values{R"({"step": 3, "sizes": [1, 2.5, null], "text": "\u00e4 \"quoted\""})", "[]",
                                        "true", "\"\"", "\"" + std::string(100'000, 'x') + "\""};
  run_ranks(
      3,
      [&](World& world) {
        const StageLinks links(world, world.group(), GetParam().how);
        for (const std::string& value : values) {
          if (world.rank() < 2) links.send_json(value, Neighbour::next, {.micro_batch = 1});
          if (world.rank() > 0)
            expect(links.recv_json(Neighbour::previous, {.micro_batch = 1}) == value, value.substr(0, 80));
        }
        expect(testing_support::error_of([&] {
                 links.send_json("{\"open\": ", Neighbour::next, {});
               }).find("9 bytes is no JSON") != std::string::npos,
               "no JSON");
        barrier(world.group()).wait();  // gloo's sends end with their sender
      },
      options());
}

// Four tensors over each cut, three of them without gradient and one of so many dimensions that the header cannot
// describe them; shapes change between micro-batches. With several tensor ranks each sends a part of them all.
TEST_P(StageLinksOver, CarryActivationsAndGradientsOfASchedule) {
  const std::vector<std::int64_t> many_dimensions = std::vector<std::int64_t>(30, 1);
  const auto mixes = function(
      "mixes", [=](const at::Tensor& x, const at::Tensor& kinds, const at::Tensor& mask, const at::Tensor& fixed) {
        expect(fixed.sizes() == many_dimensions && fixed.item<double>() == -1.0 && !fixed.requires_grad(),
               "without gradient");
        return std::tuple{(x * 2).masked_fill(mask, 1.0), kinds + 1, mask, fixed};
      });
  const std::vector<LayerSpec> layers{function("first",
                                               [=](const at::Tensor& x) {
                                                 return std::tuple{x * 3, (x > 0).to(at::kLong), x < 0,
                                                                   x.detach().narrow(0, 0, 1).view(many_dimensions)};
                                               }),
                                      function("through", [](const Tensors& all) { return all; }), mixes, mixes};
  for (const LayoutSpec& layout :
       {LayoutSpec{}, LayoutSpec{.pipe = 2}, LayoutSpec{.pipe = 4}, LayoutSpec{.pipe = 2, .tensor = 3}}) {
    for (const auto& kind : {gpipe(), one_f_one_b()}) {
      run_ranks(
          layout.pipe * layout.tensor,
          [&](World& world) {
            const PipelineModule module(Mesh(world, layout), layers,
                                        {.partition = by_layers(),
                                         .point_to_point = GetParam().how,
                                         .partition_activations = layout.tensor > 1});
            std::vector<at::Tensor> inputs;
            for (std::int64_t m = 0; m < 3; ++m)
              inputs.push_back((at::arange(2 + m, at::kDouble) - 1).set_requires_grad(true));
            std::int64_t kinds_sum = 0;
            const double loss = execute(
                module, kind.generate(layout.pipe, 3), [&](std::int64_t m) { return MicroBatch{{inputs[m]}, {}}; },
                [&](const Tensors& outputs, const Tensors&) {
                  kinds_sum += outputs[1].sum().item<std::int64_t>();
                  expect(outputs[2].scalar_type() == at::kBool, "the mask's dtype");
                  return outputs[0].sum();
                });
            if (module.last_stage()) {
              expect(kinds_sum == 2 * (2 + 3 + 4) + 0 + 1 + 2, "integers");
              expect(loss == (1 + 0) + (1 + 0 + 12) + (1 + 0 + 12 + 24), "loss");
            }
            if (module.first_stage()) {
              expect(at::equal(inputs[2].grad(), at::tensor({0.0, 12.0, 12.0, 12.0}, at::kDouble) / 3.0), "gradients");
            }
          },
          options());
    }
  }
}

std::vector<std::shared_ptr<detail::Recorder>> recorders(std::int64_t count, bool point_to_point) {
  std::vector<std::shared_ptr<detail::Recorder>> all;
  for (std::int64_t i = 0; i < count; ++i) {
    all.push_back(std::make_shared<detail::Recorder>());
    all.back()->point_to_point = point_to_point;
  }
  return all;
}

std::vector<LayerSpec> two_functions() {
  return {function("twice", [](const at::Tensor& x) { return x * 2; }),
          function("same", [](const at::Tensor& x) { return x * 1; })};
}

double run_two_stages(const PipelineModule& module, std::int64_t elems) {
  return execute(
      module, one_f_one_b().generate(2, 2),
      [&](std::int64_t) { return MicroBatch{{at::ones({elems}).set_requires_grad(true)}, {}}; },
      [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); });
}

TEST(StageLinks, BroadcastWhereTheBackendHasNoPointToPoint) {
  const auto all = recorders(2, false);
  detail::run_ranks_recorded(all, [](World& world) {
    const Mesh mesh(world, {.pipe = 2});
    const double loss = run_two_stages(PipelineModule(mesh, two_functions(), {.partition = by_layers()}), 5);
    expect(loss == (world.rank() == 1 ? 20.0 : 0.0), "loss");
    at::Tensor tensor = at::zeros({1});
    const auto contains = [](const std::string& text, const char* part) {
      expect(text.find(part) != std::string::npos, text);
    };
    contains(testing_support::error_of([&] { (void)send(tensor, world.group(), 1 - world.rank()); }),
             "its backend has no point-to-point operations");
    contains(testing_support::error_of([&] {
               PipelineModule(mesh, two_functions(), {.partition = by_layers(), .point_to_point = PointToPoint::send});
             }),
             "send and recv are asked for, but backend host has no point-to-point operations");
  });
  for (const auto& recorder : all) {
    EXPECT_EQ(recorder->count("send") + recorder->count("recv"), 0);
    EXPECT_GE(recorder->count("broadcast"), 2 * 3);  // header, activation and gradient of each micro-batch
  }
}

TEST(StageLinks, SendPartsOnlyWhereAskedTo) {
  for (const bool in_parts : {false, true}) {
    const auto all = recorders(4, true);
    detail::run_ranks_recorded(all, [&](World& world) {
      run_two_stages(PipelineModule(Mesh(world, {.pipe = 2, .tensor = 2}), two_functions(),
                                    {.partition = by_layers(), .partition_activations = in_parts}),
                     101);
    });
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      std::set<std::int64_t> sizes;
      for (const auto& call : all[rank]->calls()) {
        if (call.operation == "send" && call.dtype == at::kFloat) sizes.insert(call.elems);
      }
      EXPECT_THAT(sizes, ::testing::ElementsAre(!in_parts ? 101 : rank % 2 == 0 ? 51 : 50)) << "rank " << rank;
    }
  }
}

TEST(StageLinks, TellMessagesApartByDirectionChunkAndMicroBatch) {
  std::set<std::int64_t> tags;
  for (const bool to_next : {false, true}) {
    for (const std::int64_t chunk : {0, 1, 63}) {
      for (const std::int64_t micro_batch : {0, 1, 2, 63, 64, (1 << 24) - 2}) {
        const std::int64_t tag = wire_tag(to_next, {chunk, micro_batch});
        EXPECT_GE(tag, 0);
        EXPECT_LT(tag, std::numeric_limits<std::int32_t>::max());  // gloo's largest is one less
        EXPECT_TRUE(tags.insert(tag).second) << tag;
      }
    }
  }
  EXPECT_THAT(testing_support::error_of([] { wire_tag(true, {64, 0}); }),
              ::testing::HasSubstr("chunk 64 and micro-batch 0; expected chunks below 64"));
  EXPECT_THAT(testing_support::error_of([] { wire_tag(true, {0, (1 << 24) - 1}); }),
              ::testing::HasSubstr("micro-batches below 16777215"));
  EXPECT_THAT(testing_support::error_of([] { wire_tag(true, {0, -1}); }), ::testing::HasSubstr("micro-batch -1"));
}

TEST(StageLinks, HaveNoNeighbourWithOneStage) {
  run_ranks(1, [](World& world) {
    const StageLinks links(world, world.group(), PointToPoint::broadcast);
    const std::string error = testing_support::error_of([&] { (void)links.send(at::ones({1}), Neighbour::next, {}); });
    EXPECT_THAT(error, ::testing::HasSubstr("the only stage has no neighbour"));
  });
}

TEST(StageLinks, AreNamedByWords) {
  for (const PointToPoint how : {PointToPoint::automatic, PointToPoint::send, PointToPoint::broadcast}) {
    EXPECT_EQ(point_to_point_by_name(to_string(how)), how);
  }
  EXPECT_THAT(testing_support::error_of([] { point_to_point_by_name("pigeon"); }),
              ::testing::HasSubstr("no 'pigeon'; choose auto, send or broadcast"));
}

}  // namespace
}  // namespace espalier
