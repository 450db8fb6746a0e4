// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "espalier/parallel/pipeline/layer_spec.hpp"

namespace espalier {

// How a list of layers is cut into stages: a name for reports, and a function that gives stages + 1 ascending cuts. The
// same cuts must come out on every rank.
struct PartitionMethod {
  std::string name;
  std::function<std::vector<std::int64_t>(std::span<const LayerSpec> layers, std::int64_t num_stages)> cut;
};

// Balanced by the number of trainable parameters. Builds each layer once to count (one at a time, then drops it).
PartitionMethod by_parameters();
// The same number of layers a stage, to within one.
PartitionMethod by_layers();
// Balanced by the number of layers whose type name matches a case-insensitive regular expression.
PartitionMethod by_type(std::string pattern);
// Balanced by a weight a layer (measured milliseconds, say).
PartitionMethod by_weights(std::vector<double> weights);
// Exactly these cuts: {0, 2, 4, 6} gives layers 0-1, 2-3 and 4-5 to three stages.
PartitionMethod at_cuts(std::vector<std::int64_t> cuts);

// Number of trainable parameters of every layer; a tied use counts as its key's first one.
std::vector<std::int64_t> count_parameters(std::span<const LayerSpec> layers);

}  // namespace espalier
