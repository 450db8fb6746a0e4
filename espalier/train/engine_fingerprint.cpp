// SPDX-License-Identifier: Apache-2.0
// What a run is made of. A rank knows the parameters of its own stage alone: these are compared with those of its
// replicas, then gathered over the stages, so that every rank has the fingerprint of the whole run.
#include "espalier/base/check.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/together.hpp"
#include "espalier/train/engine_state.hpp"

namespace espalier {
namespace {

std::vector<Fact> layer_facts(std::span<const LayerSpec> layers) {
  std::vector<Fact> facts;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string tied = layers[i].tied_key.empty() ? "" : fmt::format(" tied as '{}'", layers[i].tied_key);
    facts.push_back({fmt::format("layer {}", i), layers[i].type_name + tied});
  }
  return facts;
}

// Of this stage.
std::vector<Fact> tensor_facts(const PipelineModule& module, const ParameterRule& rule) {
  std::vector<Fact> facts;
  const auto add = [&](const char* kind, const Parameter& one, std::string_view remark) {
    const at::Tensor& tensor = one.tensor();
    facts.push_back({fmt::format("{} {}", kind, one.name), fmt::format("{} [{}]{}", c10::toString(tensor.scalar_type()),
                                                                       fmt::join(tensor.sizes(), ","), remark)});
  };
  for (const Parameter& one : module.parameters()) {
    const ParameterSettings settings = rule ? rule(one) : ParameterSettings{};
    std::string remark = one.tensor().requires_grad() ? "" : " frozen";
    if (settings.lr_scale != 1.0) remark += fmt::format(", lr times {}", settings.lr_scale);
    if (settings.weight_decay_scale != 1.0)
      remark += fmt::format(", weight decay times {}", settings.weight_decay_scale);
    add("parameter", one, remark);
  }
  for (const Parameter& one : module.buffers()) add("buffer", one, "");
  return facts;
}

std::vector<std::string> entries_of(std::span<const Fact> facts) {
  std::vector<std::string> entries;
  for (const Fact& fact : facts) entries.push_back(fmt::format("{}={}", fact.name, fact.value));
  return entries;
}

// Those of all stages, a tied tensor's once. Collective over the pipe axis.
std::vector<Fact> over_stages(const std::vector<Fact>& mine, const Group& pipe) {
  std::vector<std::string> texts;
  for (const Fact& fact : mine) texts.insert(texts.end(), {fact.name, fact.value});
  std::vector<Fact> all;
  for (const auto& stage : gather_lists(pipe, texts)) {
    for (std::size_t i = 0; i + 1 < stage.size(); i += 2) all.push_back({stage[i], stage[i + 1]});
  }
  return all;
}

// What all ranks must have alike in a run, but may choose anew when it is resumed.
std::vector<Fact> choices(const Mesh& mesh, const PipelineModule& module, const EngineOptions& options) {
  const auto fact = [](const char* name, std::string value) { return Fact{name, std::move(value), FactScope::ranks}; };
  return {fact("layout", mesh.layout().to_string()), fact("cuts", fmt::format("{}", fmt::join(module.cuts(), ","))),
          fact("schedule", options.schedule.name), fact("micro_batches", fact_text(options.micro_batches)),
          fact("bucket_bytes", fact_text(options.bucket_bytes))};
}

}  // namespace

void Engine::State::agree_on_fingerprint() {
  const auto add = [&](const std::vector<Fact>& facts) {
    for (const Fact& fact : facts) fingerprint.add(fact);
  };
  const Group& world = mesh.world().group();
  const std::vector<Fact> tensors = tensor_facts(module, options.parameter_settings);
  const auto own = [&] {
    add(layer_facts(module.layers()));
    add({{"seed", fact_text(module.seed())}, {"max_grad_norm", fact_text(options.max_grad_norm)}});
    add(optimizer->facts());
    add(choices(mesh, module, options));
    add(options.facts);
  };
  detail::together(world, own);
  detail::together(world, [&] { agree(mesh.group("data_context"), "engine", entries_of(tensors)); });
  detail::together(world, [&] { add(over_stages(tensors, mesh.group("pipe"))); });
  agree(world, "engine", entries_of(fingerprint.facts()));
}

}  // namespace espalier
