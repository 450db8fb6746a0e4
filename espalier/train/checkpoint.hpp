// SPDX-License-Identifier: Apache-2.0
// Private. A checkpoint is a folder of safetensors files, one a layer or tied key, and a manifest. Nothing in it tells
// which layout wrote it. All calls are collective over the world and throw the same ConfigError on every rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "espalier/comm/group.hpp"

namespace espalier::detail {

// The whole model's facts, alike on every rank.
struct CheckpointManifest {
  std::int64_t step = 0;
  std::int64_t optimizer_steps = 0;
  std::int64_t num_parameters = 0;  // elements
  std::int64_t replicas = 0;        // that saved optimizer state of their own; 0: there was none
};

// One tensor that this rank holds: in which file, under which name, and whether it is the copy that counts.
struct CheckpointTensor {
  std::string file;
  std::string name;
  at::Tensor tensor;
  bool counted;
};

// Writes the counted ones of `held` (those of one file are counted on one rank) to folder/step-N, then points
// folder/latest to it and removes all but the newest two. Readers see the old checkpoint or the new one, nothing
// between.
void write_checkpoint(const std::string& folder, const CheckpointManifest& manifest,
                      std::span<const CheckpointTensor> held, const Group& world);

// The manifest of the checkpoint that folder/latest names; nullopt when there is none.
std::optional<CheckpointManifest> read_manifest(const std::string& folder, const Group& world);

// Fills `wanted` from that checkpoint, any tensors, the same ones on several ranks too. Shapes and dtypes must be the
// same.
void read_checkpoint(const std::string& folder, const CheckpointManifest& manifest, std::span<CheckpointTensor> wanted,
                     const Group& world);

}  // namespace espalier::detail
