// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/models/gpt/gpt.hpp"
#include "espalier/parallel/pipeline/partition_method.hpp"
#include "espalier/plan/layout/layout.hpp"
#include "espalier/train/optimizers/optimizer.hpp"

namespace espalier::command {

// What `train` and `verify` share: the layout and the model.
struct ModelOptions {
  std::string layout = "data=1";
  std::int64_t layers = 4;
  std::int64_t hidden = 128;
  std::int64_t heads = 4;
  std::int64_t context = 128;
  std::int64_t micro_batches = 4;
  std::string schedule = "1f1b";
  std::string partition = "parameters";
  std::string point_to_point = "auto";
  std::string precision = "fp32";
  std::string backend;  // empty: World's own choice
  std::int64_t recompute_every = 0;
  std::uint64_t seed = 1;
  int threads = 1;

  void add_to(CLI::App& app);
  // ConfigError for what can be known wrong before any rank starts. Returns the number of ranks that the layout needs;
  // nullopt when one axis takes the rest of a world that a launcher has to start.
  std::optional<std::int64_t> check() const;

  LayoutSpec layout_spec() const;
  GptOptions gpt() const;
  PartitionMethod partition_method() const;
  WorldOptions world() const;
};

struct TrainOptions {
  ModelOptions model;
  std::vector<std::string> text;
  std::int64_t batch = 16;
  std::int64_t steps = 400;
  double lr = 3e-3;
  std::int64_t warmup = 20;
  double clip = 1.0;
  std::string optimizer = "adamw";
  std::int64_t freeze_step = 100;  // of onebit-adam
  std::string out;                 // empty: nothing is written
  std::int64_t save_every = 50;
  bool resume = false;
  std::int64_t sample = 200;  // bytes of text at the end

  void add_to(CLI::App& app);
  std::optional<std::int64_t> check() const;

  OptimizerFactory optimizer_factory() const;
};

}  // namespace espalier::command
