// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/models/gpt/byte_text.hpp"
#include "espalier/train/engine.hpp"

namespace espalier::command {

// The samples as micro-batches of `size` each; none on stages that neither feed the model nor see its outputs.
std::vector<MicroBatch> micro_batches_of(const ByteText& text, std::span<const std::int64_t> samples, std::int64_t size,
                                         const PipelineModule& module);

struct ValidationOptions {
  std::int64_t batch = 0;          // samples, over all data ranks
  std::int64_t micro_batches = 1;  // that each data rank makes of its share
  std::int64_t max_batches = 0;    // 0: all that the text holds
};

// The mean loss on a text: over whole batches of samples that lie evenly in it, the same ones every time and in every
// layout.
class Validation {
 public:
  Validation(ByteText text, const ValidationOptions& options, const Mesh& mesh);

  // Collective over the world; blocks. A file that can no longer be read is a ConfigError on every rank.
  double loss(Engine& engine) const;

 private:
  ByteText text_;
  ValidationOptions options_;
  Mesh mesh_;
  std::int64_t num_batches_;
};

}  // namespace espalier::command
