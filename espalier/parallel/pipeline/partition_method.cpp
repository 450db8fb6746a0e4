// SPDX-License-Identifier: Apache-2.0
#include "espalier/parallel/pipeline/partition_method.hpp"

#include <map>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/parallel/pipeline/build_layer.hpp"
#include "espalier/plan/partition/partition.hpp"

namespace espalier {

std::vector<std::int64_t> count_parameters(std::span<const LayerSpec> layers) {
  std::vector<std::int64_t> counts;
  std::map<std::string, std::int64_t> tied_counts;
  for (const LayerSpec& layer : layers) {
    if (!layer.build) {
      counts.push_back(tied_counts.at(layer.tied_key));
      continue;
    }
    std::int64_t count = 0;
    const auto module = detail::build_layer(layer, /*seed=*/0, /*seed_function=*/{});
    for (const at::Tensor& parameter : module->parameters()) {
      if (parameter.requires_grad()) count += parameter.numel();
    }
    counts.push_back(count);
    if (!layer.tied_key.empty()) tied_counts.emplace(layer.tied_key, count);
  }
  return counts;
}

PartitionMethod by_parameters() {
  return {"parameters", [](std::span<const LayerSpec> layers, std::int64_t num_stages) {
            const auto counts = count_parameters(layers);
            return partition_balanced(std::vector<double>(counts.begin(), counts.end()), num_stages);
          }};
}

PartitionMethod by_layers() {
  return {"uniform", [](std::span<const LayerSpec> layers, std::int64_t num_stages) {
            return partition_uniform(static_cast<std::int64_t>(layers.size()), num_stages);
          }};
}

PartitionMethod by_type(std::string pattern) {
  return {"type:" + pattern, [pattern](std::span<const LayerSpec> layers, std::int64_t num_stages) {
            std::vector<std::string> names;
            for (const LayerSpec& layer : layers) names.push_back(layer.type_name);
            return partition_by_type(names, pattern, num_stages);
          }};
}

PartitionMethod by_weights(std::vector<double> weights) {
  return {"weights", [weights = std::move(weights)](std::span<const LayerSpec> layers, std::int64_t num_stages) {
            ESPALIER_CHECK_CONFIG(weights.size() == layers.size(),
                                  "partition by weights: {} weights for {} layers; give one weight a layer",
                                  weights.size(), layers.size());
            return partition_balanced(weights, num_stages);
          }};
}

PartitionMethod at_cuts(std::vector<std::int64_t> cuts) {
  return {fmt::format("{}", fmt::join(cuts, ",")), [cuts](std::span<const LayerSpec> layers, std::int64_t num_stages) {
            return partition_explicit(cuts, static_cast<std::int64_t>(layers.size()), num_stages);
          }};
}

}  // namespace espalier
