// SPDX-License-Identifier: Apache-2.0
// The central promise: the reference GPT under any layout gives one process's losses, gradients, norms and weights.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "espalier/comm/backends/hierarchical/hierarchical.hpp"
#include "espalier/comm/backends/recording/recording.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/comm/threads.hpp"
#include "tests/train/gpt_run.hpp"

namespace espalier::testing_support {
namespace {

// Sums come in another order than in one process; ten AdamW steps amplify their rounding.
constexpr double kFloat64Tolerance = 1e-10;
constexpr double kFloat32Tolerance = 1e-5;

std::vector<GptRun> all_layouts() {
  std::vector<GptRun> runs;
  for (const std::int64_t data : {1, 2, 4}) {
    for (const std::int64_t pipe : {1, 2, 4}) {
      for (const char* schedule : {"gpipe", "1f1b"}) {
        for (const std::int64_t micro_batches : {1, 2, 3, 8}) {
          for (const std::int64_t recompute : {0, 2}) {
            runs.push_back({.layout = {.pipe = pipe, .data = data},
                            .schedule = schedule,
                            .micro_batches = micro_batches,
                            .recompute_every = recompute,
                            .global_micro_batches = data * micro_batches});
          }
        }
      }
    }
  }
  return runs;
}

// One process's run for each batch and model, made once.
class SerialRuns {
 public:
  const ReferenceResult& for_run(const GptRun& run) {
    auto& result = results_[{run.global_micro_batches, run.inner_tied_uses}];
    if (result.losses.empty()) result = train_serially(run);
    return result;
  }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, ReferenceResult> results_;  // by micro-batches and tied uses
};

TEST(ParallelEqualsSerial, InEveryLayoutOfDataAndPipeInFloat64) {
  SerialRuns serial;
  Difference worst;
  std::string worst_run;
  const auto runs = all_layouts();
  for (const GptRun& run : runs) {
    const Difference difference = largest_difference(serial.for_run(run), train_in_threads(run));
    ASSERT_LE(difference.relative, kFloat64Tolerance) << run.name() << ": " << difference.where;
    if (difference.relative >= worst.relative) {
      worst = difference;
      worst_run = run.name();
    }
  }
  fmt::print("{} layouts, worst {:.2e} at {} ({})\n", runs.size(), worst.relative, worst_run, worst.where);
}

// Over ten steps float32 weights drift apart by rounding alone, so losses, norm and gradients of the first step are
// compared.
TEST(ParallelEqualsSerial, AtTheFirstStepInFloat32) {
  SerialRuns serial;
  Difference worst;
  std::string worst_run;
  std::int64_t num_runs = 0;
  for (GptRun run : all_layouts()) {
    if (run.micro_batches == 8) continue;
    run.steps = 1;
    run.dtype = at::kFloat;
    ReferenceResult expected = serial.for_run(run);
    ReferenceResult actual = train_in_threads(run);
    expected.final_weights = actual.final_weights = {};
    const Difference difference = largest_difference(expected, actual);
    ASSERT_LE(difference.relative, kFloat32Tolerance) << run.name() << ": " << difference.where;
    ++num_runs;
    if (difference.relative >= worst.relative) {
      worst = difference;
      worst_run = run.name();
    }
  }
  fmt::print("{} layouts, worst {:.2e} at {} ({})\n", num_runs, worst.relative, worst_run, worst.where);
}

TEST(ParallelEqualsSerial, BitForBitWhenRunTwice) {
  const GptRun run{
      .layout = {.pipe = 2, .data = 2}, .micro_batches = 3, .global_micro_batches = 6, .dtype = at::kFloat};
  EXPECT_EQ(largest_difference(train_in_threads(run), train_in_threads(run)).relative, 0.0);
}

TEST(ParallelEqualsSerial, OverGlooToo) {
  const auto over_gloo = [](std::int64_t num_ranks, const auto& body) {
    run_ranks(num_ranks, body, {.backend = Backend::gloo});
  };
  SerialRuns serial;
  for (const auto& [pipe, data] : {std::pair<std::int64_t, std::int64_t>{2, 2}, {4, 1}, {1, 4}}) {
    const GptRun run{
        .layout = {.pipe = pipe, .data = data}, .micro_batches = 3, .steps = 3, .global_micro_batches = 3 * data};
    const Difference difference = largest_difference(serial.for_run(run), train_in_threads(run, over_gloo));
    EXPECT_LE(difference.relative, kFloat64Tolerance) << run.name() << ": " << difference.where;
  }
}

TEST(ParallelEqualsSerial, OnSeveralHostsToo) {
  SerialRuns serial;
  for (const auto& [pipe, data] : {std::pair<std::int64_t, std::int64_t>{2, 2}, {4, 1}, {1, 4}}) {
    const GptRun run{
        .layout = {.pipe = pipe, .data = data}, .micro_batches = 3, .steps = 3, .global_micro_batches = 3 * data};
    for (const std::vector<std::int64_t>& hosts : {std::vector<std::int64_t>{0, 0, 1, 1}, {0, 1, 1, 1}}) {
      const auto over_hosts = [&](std::int64_t, const auto& body) {
        WorldOptions options;
        options.backend = Backend::hierarchical;
        detail::run_threads(detail::make_hierarchical_transports_for_threads(hosts), Backend::hierarchical, body,
                            options, hosts);
      };
      const Difference difference = largest_difference(serial.for_run(run), train_in_threads(run, over_hosts));
      EXPECT_LE(difference.relative, kFloat64Tolerance) << run.name() << ": " << difference.where;
    }
  }
}

// Processes give the same bits as threads, and over gloo, whose sums come in another order, the same numbers.
TEST(ParallelEqualsSerial, InProcessesToo) {
  SerialRuns serial;
  for (const GptRun& run : std::vector<GptRun>{
           {.layout = {.pipe = 2, .data = 2},
            .micro_batches = 3,
            .recompute_every = 2,
            .steps = 3,
            .global_micro_batches = 6},
           {.layout = {.pipe = 4, .data = 1},
            .schedule = "gpipe",
            .micro_batches = 2,
            .steps = 3,
            .global_micro_batches = 2},
           {.layout = {.pipe = 1, .data = 4}, .micro_batches = 1, .steps = 3, .global_micro_batches = 4}}) {
    const ReferenceResult& expected = serial.for_run(run);
    const ReferenceResult in_processes = train_in_processes(run, "host");
    Difference difference = largest_difference(train_in_threads(run), in_processes);
    EXPECT_EQ(difference.relative, 0.0) << run.name() << ": " << difference.where;
    for (const ReferenceResult& result : {in_processes, train_in_processes(run, "gloo")}) {
      difference = largest_difference(expected, result);
      EXPECT_LE(difference.relative, kFloat64Tolerance) << run.name() << ": " << difference.where;
    }
  }
}

// Ways of handing tensors on, and who holds the embedding, over both backends.
void expect_equal_over_every_backend(const std::vector<GptRun>& runs) {
  SerialRuns serial;
  for (const GptRun& run : runs) {
    for (const Backend backend : {Backend::host, Backend::gloo}) {
      const auto over = [&](std::int64_t num_ranks, const auto& body) {
        run_ranks(num_ranks, body, {.backend = backend});
      };
      const Difference difference = largest_difference(serial.for_run(run), train_in_threads(run, over));
      EXPECT_LE(difference.relative, kFloat64Tolerance)
          << run.name() << " over " << to_string(backend) << ": " << difference.where;
    }
  }
}

TEST(ParallelEqualsSerial, WithTheEmbeddingTiedOverThreeAndFourStages) {
  const GptRun three{
      .layout = {.pipe = 3}, .micro_batches = 2, .steps = 3, .global_micro_batches = 2, .inner_tied_uses = 1};
  GptRun four = three, in_data = three, twice_on_a_stage = three;
  four.layout.pipe = 4;
  four.inner_tied_uses = 2;
  in_data.layout.data = 2;
  in_data.global_micro_batches = 4;
  in_data.schedule = "gpipe";
  in_data.recompute_every = 2;
  twice_on_a_stage.layout.pipe = 2;
  twice_on_a_stage.inner_tied_uses = 2;
  expect_equal_over_every_backend({three, four, in_data, twice_on_a_stage});
}

TEST(ParallelEqualsSerial, WithBroadcastsBetweenStages) {
  std::vector<GptRun> runs;
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (const auto& [pipe, data] : {std::pair<std::int64_t, std::int64_t>{2, 2}, {3, 1}, {4, 1}}) {
      runs.push_back({.layout = {.pipe = pipe, .data = data},
                      .schedule = schedule,
                      .micro_batches = 3,
                      .steps = 3,
                      .global_micro_batches = 3 * data,
                      .inner_tied_uses = pipe == 3 ? 1 : 0,
                      .point_to_point = PointToPoint::broadcast});
    }
  }
  expect_equal_over_every_backend(runs);
}

// The tensor ranks hold copies of everything; stages hand on a part of each activation and gradient per tensor rank.
TEST(ParallelEqualsSerial, WithActivationsInPartsOverTheTensorRanks) {
  const GptRun parts{.layout = {.pipe = 2, .tensor = 2},
                     .micro_batches = 3,
                     .steps = 3,
                     .global_micro_batches = 3,
                     .partition_activations = true};
  GptRun uneven = parts, broadcast = parts, in_data = parts;
  uneven.layout = {.pipe = 2, .tensor = 3};
  uneven.schedule = "gpipe";
  broadcast.point_to_point = PointToPoint::broadcast;
  in_data.layout.data = 2;
  in_data.global_micro_batches = 6;
  expect_equal_over_every_backend({parts, uneven, broadcast, in_data});
}

// What the comparison is worth: with one reduction dropped, or one scale doubled, it must fail.
TEST(ParallelEqualsSerial, FailsWhenAReductionIsDroppedOrDoubled) {
  const GptRun run{.layout = {.pipe = 2, .data = 2}, .micro_batches = 2, .steps = 3, .global_micro_batches = 4};
  const ReferenceResult expected = train_serially(run);
  const auto with_fault = [&](const std::string& group, const detail::Fault& fault) {
    std::int64_t hits = 0;
    std::mutex mutex;
    const auto spoiled = [&](std::int64_t num_ranks, const std::function<void(World&)>& body) {
      std::vector<std::shared_ptr<detail::Recorder>> recorders;
      for (std::int64_t i = 0; i < num_ranks; ++i) {
        recorders.push_back(std::make_shared<detail::Recorder>([&](const detail::RecordedCall& call) {
          const bool hit = call.operation == "all_reduce" && call.group == group && call.elems > 1;
          const std::lock_guard lock(mutex);
          hits += hit;
          return hit ? fault : detail::Fault{};
        }));
      }
      detail::run_ranks_recorded(recorders, body);
    };
    double difference = 1.0;  // copies of a parameter that differ between ranks are noticed by an exception
    try {
      difference = largest_difference(expected, train_in_threads(run, spoiled)).relative;
    } catch (const std::exception&) {
    }
    EXPECT_GT(hits, 0) << group;
    return difference;
  };
  EXPECT_LE(with_fault("data", {}), kFloat64Tolerance);
  EXPECT_GT(with_fault("data", {.drop = true}), 1e-3);
  EXPECT_GT(with_fault("data", {.scale = 2.0}), 1e-3);
  EXPECT_GT(with_fault("pipe", {.drop = true}),
            1e-3);  // the tied embedding is on both stages: their group is the pipe's
  EXPECT_GT(with_fault("pipe", {.scale = 2.0}), 1e-3);
}

}  // namespace
}  // namespace espalier::testing_support
