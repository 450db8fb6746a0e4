// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "espalier/comm/world.hpp"
#include "espalier/models/gpt/gpt.hpp"
#include "espalier/parallel/pipeline/partition_method.hpp"
#include "espalier/plan/layout/layout.hpp"

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

// ConfigError unless `value` is at least 1.
void check_positive(const char* name, std::int64_t value);

}  // namespace espalier::command
