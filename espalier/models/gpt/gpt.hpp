// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "espalier/parallel/pipeline/layer_spec.hpp"
#include "espalier/sharding/parameter.hpp"

namespace espalier {

// A pre-norm GPT with learned positions, GELU MLPs of 4 * hidden and the output tied to the token embedding.
// (Radford et al. 2019)
struct GptOptions {
  std::int64_t vocab = 256;
  std::int64_t layers = 4;
  std::int64_t hidden = 128;
  std::int64_t heads = 4;
  std::int64_t context = 128;
  at::ScalarType dtype = at::kFloat;
};

// tokens [batch, sequence] int64 -> logits [batch, sequence, vocab], as layers for a PipelineModule: the embedding
// (tied key "wte"), positions, `layers` blocks, the final norm, the output. ConfigError unless heads divides hidden and
// all are >= 1.
std::vector<LayerSpec> gpt_layers(const GptOptions& options);

// Mean cross entropy of outputs {logits [batch, sequence, vocab]} against targets {tokens [batch, sequence]}.
at::Tensor next_token_loss(const Tensors& outputs, const Tensors& targets);

// For 1-bit Adam's momentum_mask: 0 for the key's part of a block's "qkv.bias", 1 for the rest of it; undefined for all
// other parameters. A key's bias adds the same to all scores of a query, so its gradient is zero but for rounding.
at::Tensor gpt_momentum_mask(const Parameter& parameter);

}  // namespace espalier
