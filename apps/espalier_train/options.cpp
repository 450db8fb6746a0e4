// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/options.hpp"

#include <charconv>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/parallel/pipeline/stage_links.hpp"
#include "espalier/plan/schedule/schedules.hpp"

namespace espalier::command {
namespace {

std::vector<std::int64_t> parse_cuts(const std::string& text) {
  std::vector<std::int64_t> cuts;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at <= end) {
    std::int64_t value = 0;
    const auto [after, error] = std::from_chars(at, end, value);
    ESPALIER_CHECK_CONFIG(error == std::errc() && (after == end || *after == ','),
                          "partition: '{}' is none of parameters, uniform, type:REGEX and a list of cuts such as 0,2,4",
                          text);
    cuts.push_back(value);
    at = after + 1;
  }
  return cuts;
}

}  // namespace

void check_positive(const char* name, std::int64_t value) {
  ESPALIER_CHECK_CONFIG(value >= 1, "{} is {}; expected at least 1", name, value);
}

void ModelOptions::add_to(CLI::App& app) {
  const auto option = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->capture_default_str();
  };
  option("--layout", layout, "Ranks along each axis: pipe=2,data=2");
  option("--layers", layers, "Transformer blocks");
  option("--hidden", hidden, "Width of the model");
  option("--heads", heads, "Attention heads");
  option("--context", context, "Bytes the model sees at once");
  option("--micro-batches", micro_batches, "Pieces that a data rank cuts its share of the batch into");
  option("--schedule", schedule, "Pipeline schedule: 1f1b or gpipe");
  option("--partition", partition, "Layers to stages: parameters, uniform, type:REGEX or cuts such as 0,2,4,6");
  option("--p2p", point_to_point, "How stages hand tensors on: auto, send or broadcast");
  option("--precision", precision, "fp32 or fp64");
  option("--backend", backend, "host, gloo, hierarchical or mpi; default: host where all ranks share a host");
  option("--recompute", recompute_every, "Recompute activations in segments of this many layers; 0: keep them");
  option("--seed", seed, "Of weights, data order and sampling");
  option("--threads", threads, "Threads of each rank");
}

std::optional<std::int64_t> ModelOptions::check() const {
  const LayoutSpec spec = layout_spec();
  check_positive("--micro-batches", micro_batches);
  check_positive("--threads", threads);
  ESPALIER_CHECK_CONFIG(recompute_every >= 0, "--recompute is {}; expected 0 or more", recompute_every);
  ESPALIER_CHECK_CONFIG(precision == "fp32" || precision == "fp64", "--precision is '{}'; expected fp32 or fp64",
                        precision);
  schedule_by_name(schedule);
  point_to_point_by_name(point_to_point);
  if (!backend.empty()) backend_by_name(backend);
  const auto specs = gpt_layers(gpt());
  const std::optional<std::int64_t> ranks = num_ranks_of(spec);
  if (!ranks) return std::nullopt;
  ESPALIER_CHECK_CONFIG(
      spec.context == 1 && spec.tensor == 1 && spec.expert == 1,
      "layout {}: the reference GPT is trained over pipe and data; leave context, tensor and expert at 1", layout);
  ESPALIER_CHECK_CONFIG(spec.pipe <= std::ssize(specs),
                        "layout {}: {} stages, but the model has only {} layers; use pipe <= {}", layout, spec.pipe,
                        specs.size(), specs.size());
  // By parameters there is always a cut, and finding it means building every layer: left to the ranks.
  if (partition != "parameters") partition_method().cut(specs, spec.pipe);
  return ranks;
}

LayoutSpec ModelOptions::layout_spec() const { return Layout::parse(layout); }

GptOptions ModelOptions::gpt() const {
  return {.layers = layers,
          .hidden = hidden,
          .heads = heads,
          .context = context,
          .dtype = precision == "fp64" ? at::kDouble : at::kFloat};
}

PartitionMethod ModelOptions::partition_method() const {
  if (partition == "parameters") return by_parameters();
  if (partition == "uniform") return by_layers();
  if (partition.starts_with("type:")) return by_type(partition.substr(5));
  return at_cuts(parse_cuts(partition));
}

WorldOptions ModelOptions::world() const {
  WorldOptions options;
  if (!backend.empty()) options.backend = backend_by_name(backend);
  return options;
}

}  // namespace espalier::command
