// SPDX-License-Identifier: Apache-2.0
// Cutting, building, naming and tying. A stage holds one module for each of its layers; the uses of a tied key on one
// stage share it, or, when only some attributes are tied, share those parameters. Everything about tying is derived
// from the list of layers and the cuts, which all ranks know, so no rank needs to ask another.
#include "espalier/parallel/pipeline/pipeline_module.hpp"

#include <c10/core/GradMode.h>
#include <torch/nn/modules/dropout.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "espalier/autograd/recompute.hpp"
#include "espalier/base/check.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/parallel/pipeline/build_layer.hpp"
#include "espalier/plan/seed.hpp"

namespace espalier {
namespace {

// Where a tied key occurs.
struct TiedKey {
  std::string key;
  std::int64_t first_layer;
  std::vector<std::int64_t> stages;  // ascending
};

std::int64_t stage_of(const std::vector<std::int64_t>& cuts, std::int64_t layer) {
  return std::ranges::upper_bound(cuts, layer) - cuts.begin() - 1;
}

// Keys in the order of their first layer.
std::vector<TiedKey> find_tied_keys(std::span<const LayerSpec> layers, const std::vector<std::int64_t>& cuts) {
  std::vector<TiedKey> keys;
  for (std::int64_t i = 0; i < std::ssize(layers); ++i) {
    if (layers[i].tied_key.empty()) continue;
    auto found = std::ranges::find(keys, layers[i].tied_key, &TiedKey::key);
    if (found == keys.end()) found = keys.insert(keys.end(), {layers[i].tied_key, i, {}});
    const std::int64_t stage = stage_of(cuts, i);
    if (found->stages.empty() || found->stages.back() != stage) found->stages.push_back(stage);
  }
  return keys;
}

void check_layers(std::span<const LayerSpec> layers, std::int64_t num_stages) {
  ESPALIER_CHECK_CONFIG(num_stages <= std::ssize(layers),
                        "pipeline: {} stages but only {} layers; expected at most one stage a layer: use pipe <= {}",
                        num_stages, layers.size(), layers.size());
  std::set<std::string> keys;
  for (std::int64_t i = 0; i < std::ssize(layers); ++i) {
    const LayerSpec& layer = layers[i];
    if (layer.build) {
      ESPALIER_CHECK_CONFIG(
          layer.tied_key.empty() || keys.insert(layer.tied_key).second,
          "pipeline: layer {} ({}) makes the tied key '{}' a second time; make later uses with tied_use", i,
          layer.type_name, layer.tied_key);
    } else {
      ESPALIER_CHECK_CONFIG(
          keys.contains(layer.tied_key),
          "pipeline: layer {} ({}) uses the tied key '{}', which no earlier layer makes; make it with tied", i,
          layer.type_name, layer.tied_key);
    }
  }
}

std::vector<std::string> describe(std::span<const LayerSpec> layers, const std::vector<std::int64_t>& cuts,
                                  const PipelineOptions& options) {
  std::vector<std::string> facts;
  for (std::int64_t i = 0; i < std::ssize(layers); ++i) {
    facts.push_back(fmt::format("layer {} is {}{}", i, layers[i].type_name,
                                layers[i].tied_key.empty() ? "" : fmt::format(" tied as '{}'", layers[i].tied_key)));
  }
  facts.push_back(fmt::format("stages begin at layers {}", fmt::join(cuts, ",")));
  facts.push_back(fmt::format("seed={}", options.seed));
  facts.push_back(fmt::format("recompute_every={}", options.recompute_every));
  facts.push_back(fmt::format("point_to_point={}", to_string(options.point_to_point)));
  facts.push_back(fmt::format("partition_activations={}", options.partition_activations));
  return facts;
}

bool is_tied(const LayerSpec& first_use, const std::string& attribute) {
  return first_use.attributes.empty() ||
         std::ranges::find(first_use.attributes, attribute) != first_use.attributes.end();
}

// LibTorch's dropout draws from the process's one generator, so what it drops depends on the layout and, where ranks
// are threads, on their timing.
bool draws_in_forward(const torch::nn::Module& module) {
  const auto drops = [&]<class Dropout>(const Dropout* dropout) {
    return dropout != nullptr && dropout->options.p() > 0.0;
  };
  return drops(dynamic_cast<const torch::nn::DropoutImpl*>(&module)) ||
         drops(dynamic_cast<const torch::nn::Dropout2dImpl*>(&module)) ||
         drops(dynamic_cast<const torch::nn::Dropout3dImpl*>(&module)) ||
         drops(dynamic_cast<const torch::nn::AlphaDropoutImpl*>(&module)) ||
         drops(dynamic_cast<const torch::nn::FeatureAlphaDropoutImpl*>(&module));
}

void refuse_or_warn_of_dropout(const World& world, const LayerSpec& layer, std::int64_t index,
                               torch::nn::Module& module) {
  for (const auto& part : module.modules()) {
    if (!draws_in_forward(*part)) continue;
    const std::string text = fmt::format(
        "pipeline: layer {} ({}) has a {} that draws from the process-wide generator, so its numbers depend on "
        "the layout; use one with a generator of its own, or p = 0",
        index, layer.type_name, detail::layer_type_name(part->name()));
    ESPALIER_CHECK_CONFIG(world.launcher() != "threads", "{}", text);
    world.log().warning(text);
    return;
  }
}

// The first element that differs in any bit; -1 where none does. Both are contiguous and of one shape and dtype.
std::int64_t first_difference(const at::Tensor& a, const at::Tensor& b) {
  const auto* first = static_cast<const char*>(a.const_data_ptr());
  const auto* second = static_cast<const char*>(b.const_data_ptr());
  const char* const end = first + a.nbytes();
  const char* const at = std::mismatch(first, end, second).first;
  return at == end ? -1 : (at - first) / static_cast<std::int64_t>(a.element_size());
}

bool has_parameters(const torch::nn::Module& module) { return !module.parameters().empty(); }

}  // namespace

struct PipelineModule::State {
  struct BuiltLayer {
    std::int64_t index;  // in the whole model
    std::shared_ptr<torch::nn::Module> module;
    std::function<Tensors(torch::nn::Module&, const Tensors&)> forward;
    bool may_recompute;
  };

  Mesh mesh;
  std::vector<LayerSpec> layers;
  std::uint64_t seed = 0;
  std::int64_t recompute_every = 0;
  bool partition_activations = false;
  std::vector<std::int64_t> cuts = {};
  std::vector<BuiltLayer> built = {};
  std::vector<Parameter> parameters = {};
  std::vector<Parameter> buffers = {};
  std::vector<TiedGroup> tied_groups = {};
  std::optional<StageLinks> links = {};

  std::int64_t stage() const { return mesh.coordinate("pipe"); }
  void build(const PipelineOptions& options, const std::vector<TiedKey>& keys);
  void name_parameters(const std::vector<TiedKey>& keys);
  void connect_tied(const std::vector<TiedKey>& keys);
};

void PipelineModule::State::build(const PipelineOptions& options, const std::vector<TiedKey>& keys) {
  std::map<std::string, std::shared_ptr<torch::nn::Module>> shared;
  for (std::int64_t i = cuts[stage()]; i < cuts[stage() + 1]; ++i) {
    const LayerSpec& layer = layers[i];
    std::shared_ptr<torch::nn::Module> module;
    if (layer.tied_key.empty()) {
      module = detail::build_layer(layer, derive_seed(options.seed, "layer", {i}), options.seed_function);
    } else {
      const std::int64_t first = std::ranges::find(keys, layer.tied_key, &TiedKey::key)->first_layer;
      auto& one = shared[layer.tied_key];
      // One module for all uses, unless only some attributes are tied: then each use has the rest to itself.
      if (!one || !layers[first].attributes.empty()) {
        one = detail::build_layer(layers[first], derive_seed(options.seed, "layer", {first}), options.seed_function);
      }
      module = one;
    }
    refuse_or_warn_of_dropout(mesh.world(), layer, i, *module);
    const bool may_recompute = options.recompute_layer ? options.recompute_layer(layer) : has_parameters(*module);
    built.push_back({i, std::move(module), layer.forward, may_recompute});
  }
}

void PipelineModule::State::name_parameters(const std::vector<TiedKey>& keys) {
  std::set<c10::TensorImpl*> seen;  // a tensor that two names reach is one parameter
  for (const TiedKey& key : keys) {
    const LayerSpec& first_use = layers[key.first_layer];
    TiedGroup group{key.key, {}, {}};
    for (const BuiltLayer& layer : built) {
      if (layers[layer.index].tied_key != key.key) continue;
      const auto attributes = layer.module->named_parameters();
      for (const std::string& wanted : first_use.attributes) {
        ESPALIER_CHECK_CONFIG(attributes.contains(wanted),
                              "pipeline: tied key '{}' names the attribute '{}', but {} has {}", key.key, wanted,
                              first_use.type_name, fmt::join(attributes.keys(), ", "));
      }
      for (const auto& attribute : attributes) {
        if (!is_tied(first_use, attribute.key()) || !seen.insert(attribute.value().unsafeGetTensorImpl()).second)
          continue;
        const std::string name = key.key + "." + attribute.key();
        const auto found = std::ranges::find(parameters, name, &Parameter::name);
        if (found != parameters.end()) {
          attribute.value().set_data(found->tensor().detach());
          found->uses.push_back(attribute.value());
        } else {
          group.parameters.push_back(parameters.size());
          parameters.push_back({name, {attribute.value()}, {.stages = key.stages}});
        }
      }
    }
    if (!group.parameters.empty()) tied_groups.push_back(std::move(group));
  }
  for (const BuiltLayer& layer : built) {
    const std::string prefix = "layers." + std::to_string(layer.index) + ".";
    for (const auto& attribute : layer.module->named_parameters()) {
      if (!seen.insert(attribute.value().unsafeGetTensorImpl()).second) continue;
      parameters.push_back({prefix + attribute.key(), {attribute.value()}, {.stages = {stage()}}});
    }
    for (const auto& buffer : layer.module->named_buffers()) {
      if (!buffer.value().defined() || !seen.insert(buffer.value().unsafeGetTensorImpl()).second) continue;
      buffers.push_back({prefix + buffer.key(), {buffer.value()}, {.stages = {stage()}}});
    }
  }
}

void PipelineModule::State::connect_tied(const std::vector<TiedKey>& keys) {
  const Group& pipe = mesh.group("pipe");
  for (TiedGroup& tied : tied_groups) {
    std::vector<std::int64_t> ranks;
    for (const std::int64_t stage : std::ranges::find(keys, tied.key, &TiedKey::key)->stages) {
      ranks.push_back(pipe.world_rank(stage));
    }
    tied.group = mesh.world().make_group(RankSet::of(ranks), "tied " + tied.key);
  }
}

PipelineModule::PipelineModule(const Mesh& mesh, std::vector<LayerSpec> layers, const PipelineOptions& options)
    : state_(std::make_shared<State>(State{.mesh = mesh,
                                           .layers = std::move(layers),
                                           .seed = options.seed,
                                           .recompute_every = options.recompute_every,
                                           .partition_activations = options.partition_activations})) {
  ESPALIER_CHECK_CONFIG(options.recompute_every >= 0, "pipeline: recompute_every is {}; expected 0 (keep all) or more",
                        options.recompute_every);
  check_layers(state_->layers, num_stages());
  state_->cuts = options.partition.cut(state_->layers, num_stages());
  agree(mesh.world().group(), "pipeline", describe(state_->layers, state_->cuts, options));
  const auto keys = find_tied_keys(state_->layers, state_->cuts);
  state_->build(options, keys);
  state_->name_parameters(keys);
  state_->connect_tied(keys);
  state_->links.emplace(mesh.world(), mesh.group("pipe"), options.point_to_point);
  synchronize_tied();
}

Tensors PipelineModule::forward(const Tensors& inputs) const {
  using BuiltLayer = State::BuiltLayer;
  Tensors tensors = inputs;
  const auto run = [](std::span<const BuiltLayer> segment, Tensors at) {
    for (const BuiltLayer& layer : segment) at = layer.forward(*layer.module, at);
    return at;
  };
  const std::span<const BuiltLayer> all(state_->built);
  if (state_->recompute_every == 0) return run(all, std::move(tensors));
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin;
    while (end < all.size() && all[end].may_recompute && std::cmp_less(end - begin, state_->recompute_every)) ++end;
    if (end == begin) {
      tensors = run(all.subspan(begin, 1), std::move(tensors));
      ++begin;
      continue;
    }
    const auto segment = all.subspan(begin, end - begin);
    tensors = recompute([state = state_, segment, run](const Tensors& at) { return run(segment, at); }, tensors);
    begin = end;
  }
  return tensors;
}

std::uint64_t PipelineModule::seed() const { return state_->seed; }
std::int64_t PipelineModule::stage() const { return state_->stage(); }
std::int64_t PipelineModule::num_stages() const { return state_->mesh.size("pipe"); }
const std::vector<std::int64_t>& PipelineModule::cuts() const { return state_->cuts; }
std::span<const LayerSpec> PipelineModule::layers() const { return state_->layers; }
std::span<const Parameter> PipelineModule::parameters() const { return state_->parameters; }
std::span<const Parameter> PipelineModule::buffers() const { return state_->buffers; }
std::span<const TiedGroup> PipelineModule::tied_groups() const { return state_->tied_groups; }
const Mesh& PipelineModule::mesh() const { return state_->mesh; }

const StageLinks& PipelineModule::links() const { return *state_->links; }
bool PipelineModule::partitions_activations() const { return state_->partition_activations; }

void PipelineModule::synchronize_tied() const {
  const c10::NoGradGuard no_grad;
  for (const TiedGroup& tied : state_->tied_groups) {
    for (const std::size_t index : tied.parameters) {
      at::Tensor copy = state_->parameters[index].tensor().detach();
      broadcast_(copy, tied.group, /*root=*/0).wait();
    }
  }
}

void PipelineModule::verify_tied() const {
  const c10::NoGradGuard no_grad;
  std::optional<std::string> error;
  for (const TiedGroup& tied : state_->tied_groups) {
    for (const std::size_t index : tied.parameters) {
      const Parameter& parameter = state_->parameters[index];
      at::Tensor owners = parameter.tensor().detach().clone(at::MemoryFormat::Contiguous);
      broadcast_(owners, tied.group, /*root=*/0).wait();
      for (const at::Tensor& use : parameter.uses) {
        const at::Tensor copy = use.detach().contiguous();
        const std::int64_t at = first_difference(owners, copy);
        if (at < 0 || error) continue;
        error = fmt::format(
            "pipeline: rank {} (stage {}) has {} in element {} of tied {}, but its owner, rank {}, has {}; expected the "
            "same bits: call synchronize_tied after changing a copy",
            tied.group.world_rank(tied.group.rank()), stage(), copy.flatten()[at].item<double>(), at, parameter.name,
            tied.group.world_rank(0), owners.flatten()[at].item<double>());
      }
    }
  }
  agree_no_error(mesh().world().group(), error);
}

void PipelineModule::train(bool on) const {
  for (const State::BuiltLayer& layer : state_->built) layer.module->train(on);
}

}  // namespace espalier
