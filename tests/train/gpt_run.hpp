// SPDX-License-Identifier: Apache-2.0
// The reference GPT trained for a few steps, by one process in plain LibTorch and by the engine in a layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/parallel/pipeline/stage_links.hpp"
#include "espalier/plan/layout/layout.hpp"
#include "espalier/plan/schedule/schedules.hpp"
#include "tests/support/reference_train.hpp"

namespace espalier::testing_support {

struct GptRun {
  LayoutSpec layout = {};
  std::string schedule = "1f1b";
  std::int64_t micro_batches = 1;
  std::int64_t recompute_every = 0;
  std::int64_t steps = 10;
  std::int64_t global_micro_batches = 1;  // of a batch, over all data ranks: data * micro_batches
  at::ScalarType dtype = at::kDouble;
  double max_grad_norm = 0.5;
  std::int64_t inner_tied_uses =
      0;  // layers between the blocks that use the embedding too: one after each of so many blocks
  PointToPoint point_to_point = PointToPoint::automatic;
  bool partition_activations = false;

  std::string name() const;
};

// One process, plain LibTorch.
ReferenceResult train_serially(const GptRun& run);

// What one rank of the layout sees: its losses and norms (the same on all), its own gradients and weights.
ReferenceResult train_rank(World& world, const GptRun& run);

// Runs a body on ranks as threads: run_ranks, or a variant of it.
using Runner = std::function<void(std::int64_t num_ranks, const std::function<void(World&)>& body)>;

// All ranks as threads; parameters merged by name. Throws when two ranks hold different bits of one parameter.
ReferenceResult train_in_threads(const GptRun& run, const Runner& runner);
ReferenceResult train_in_threads(const GptRun& run);

// The same with all ranks as processes under `espalier run`.
ReferenceResult train_in_processes(const GptRun& run, const std::string& backend);

void write_result(const ReferenceResult& result, const std::string& path);

// The largest difference between the two, each relative to the largest value of its tensor (or, for small tensors, to
// 1e-3 of the largest of all): what it is and where.
struct Difference {
  double relative = 0.0;
  std::string where;
};
Difference largest_difference(const ReferenceResult& a, const ReferenceResult& b);

}  // namespace espalier::testing_support
