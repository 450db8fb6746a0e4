// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "espalier/comm/mesh.hpp"
#include "espalier/parallel/pipeline/layer_spec.hpp"
#include "espalier/parallel/pipeline/partition_method.hpp"
#include "espalier/parallel/pipeline/stage_links.hpp"
#include "espalier/sharding/parameter.hpp"

namespace espalier {

struct PipelineOptions {
  PartitionMethod partition = by_parameters();
  // Each layer is initialised from derive_seed(seed, "layer", {index}): its weights depend on neither stage nor rank.
  std::uint64_t seed = 1234;
  // Called with a layer's seed before it is built, for initialisers that draw from a generator of the user's own.
  std::function<void(std::uint64_t seed)> seed_function = {};
  // Recompute activations in backward, in segments of this many layers; 0 keeps them all.
  std::int64_t recompute_every = 0;
  // Which layers may be recomputed; unset: those with parameters. Others end a segment and keep their activations.
  std::function<bool(const LayerSpec& layer)> recompute_layer = {};
  // How stages hand each other activations and gradients.
  PointToPoint point_to_point = PointToPoint::automatic;
  // Along the tensor axis each rank sends only its part of them, and the receiving ranks gather the parts: less to send
  // where all ranks along it hold the same activations. Wrong where they do not.
  bool partition_activations = false;
};

// The parameters of a tied key that this stage shares with others.
struct TiedGroup {
  std::string key;
  Group group;                          // over the stages that hold the key; the owner is its rank 0
  std::vector<std::size_t> parameters;  // indices into PipelineModule::parameters()
};

// A list of layers cut into the stages of a mesh's pipe axis. Each rank builds the layers of its own stage only.
// Construction is collective over the world: layers, cuts and seed are agreed on (ConfigError naming the first
// difference), tied groups are connected, tied parameters are synchronised from their owners. A cheap handle.
class PipelineModule {
 public:
  PipelineModule(const Mesh& mesh, std::vector<LayerSpec> layers, const PipelineOptions& options = {});

  // This stage's layers, one after the other. Not collective.
  Tensors forward(const Tensors& inputs) const;

  std::uint64_t seed() const;  // as in PipelineOptions
  std::int64_t stage() const;
  std::int64_t num_stages() const;
  bool first_stage() const { return stage() == 0; }
  bool last_stage() const { return stage() == num_stages() - 1; }
  const std::vector<std::int64_t>& cuts() const;  // num_stages + 1 layer indices
  std::span<const LayerSpec> layers() const;      // of all stages

  // This stage's parameters, trainable or not; those of tied keys first. Names are free of stages and ranks.
  std::span<const Parameter> parameters() const;
  // This stage's persistent buffers (running means and the like), by name.
  std::span<const Parameter> buffers() const;
  std::span<const TiedGroup> tied_groups() const;

  // tied parameters <- the owner's. Collective over the stages of each key; blocks. Done at construction and after
  // loading.
  void synchronize_tied() const;

  // Compares every copy of a tied parameter with its owner's, bit for bit. Collective over the world; blocks.
  // ConfigError, the same on every rank, naming a parameter, the ranks and the first element that differs.
  void verify_tied() const;

  const StageLinks& links() const;
  bool partitions_activations() const;

  // Training or evaluation mode of this stage's modules, as torch::nn::Module::train.
  void train(bool on) const;

  const Mesh& mesh() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace espalier
