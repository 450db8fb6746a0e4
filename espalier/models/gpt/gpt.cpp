// SPDX-License-Identifier: Apache-2.0
// Shape suffixes: b batch, s sequence, d hidden, h heads, k head size, v vocabulary.
#include "espalier/models/gpt/gpt.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

namespace nn = torch::nn;

constexpr double kInitStd = 0.02;

nn::Linear make_linear(std::int64_t inputs, std::int64_t outputs, double std) {
  nn::Linear linear(inputs, outputs);
  nn::init::normal_(linear->weight, 0.0, std);
  nn::init::zeros_(linear->bias);
  return linear;
}

// In one step; nn::Linear's own forward adds the bias in a second one.
at::Tensor affine(const nn::Linear& linear, const at::Tensor& x) { return at::linear(x, linear->weight, linear->bias); }

class TokenEmbedding : public nn::EmbeddingImpl {
 public:
  explicit TokenEmbedding(const GptOptions& options)
      : EmbeddingImpl(nn::EmbeddingOptions(options.vocab, options.hidden)) {
    nn::init::normal_(weight, 0.0, kInitStd);
    to(options.dtype);
  }
};

class PositionEmbedding : public nn::Module {
 public:
  explicit PositionEmbedding(const GptOptions& options) : context_(options.context) {
    weight_ = register_parameter("weight", at::empty({options.context, options.hidden}));
    nn::init::normal_(weight_, 0.0, kInitStd);
    to(options.dtype);
  }

  at::Tensor forward(const at::Tensor& x_bsd) {
    ESPALIER_CHECK_CONFIG(x_bsd.size(1) <= context_, "gpt: a sequence of {} tokens; the model's context is {}",
                          x_bsd.size(1), context_);
    return x_bsd + weight_.narrow(0, 0, x_bsd.size(1));
  }

 private:
  std::int64_t context_;
  at::Tensor weight_;
};

class Block : public nn::Module {
 public:
  explicit Block(const GptOptions& options) : heads_(options.heads) {
    const std::int64_t d = options.hidden;
    const double residual_std = kInitStd / std::sqrt(2.0 * static_cast<double>(options.layers));
    norm1_ = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({d})));
    qkv_ = register_module("qkv", make_linear(d, 3 * d, kInitStd));
    out_ = register_module("out", make_linear(d, d, residual_std));
    norm2_ = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({d})));
    up_ = register_module("up", make_linear(d, 4 * d, kInitStd));
    down_ = register_module("down", make_linear(4 * d, d, residual_std));
    to(options.dtype);
  }

  at::Tensor forward(const at::Tensor& x_bsd) {
    const at::Tensor mixed_bsd = x_bsd + attention(norm1_->forward(x_bsd));
    return mixed_bsd + affine(down_, at::gelu(affine(up_, norm2_->forward(mixed_bsd))));
  }

 private:
  at::Tensor attention(const at::Tensor& x_bsd) {
    const auto b = x_bsd.size(0), s = x_bsd.size(1), d = x_bsd.size(2);
    const auto by_head = [&](const at::Tensor& y_bsd) {
      return y_bsd.view({b, s, heads_, d / heads_}).transpose(1, 2);
    };
    const std::vector<at::Tensor> qkv_bsd = affine(qkv_, x_bsd).split(d, 2);
    const at::Tensor y_bhsk =
        at::scaled_dot_product_attention(by_head(qkv_bsd[0]), by_head(qkv_bsd[1]), by_head(qkv_bsd[2]),
                                         /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return affine(out_, y_bhsk.transpose(1, 2).reshape({b, s, d}));
  }

  std::int64_t heads_;
  nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  nn::Linear qkv_{nullptr}, out_{nullptr}, up_{nullptr}, down_{nullptr};
};

class FinalNorm : public nn::LayerNormImpl {
 public:
  explicit FinalNorm(const GptOptions& options) : LayerNormImpl(nn::LayerNormOptions({options.hidden})) {
    to(options.dtype);
  }
};

}  // namespace

std::vector<LayerSpec> gpt_layers(const GptOptions& options) {
  ESPALIER_CHECK_CONFIG(
      options.vocab >= 1 && options.layers >= 1 && options.hidden >= 1 && options.heads >= 1 && options.context >= 1,
      "gpt: vocab {}, layers {}, hidden {}, heads {}, context {}; expected all to be at least 1", options.vocab,
      options.layers, options.hidden, options.heads, options.context);
  ESPALIER_CHECK_CONFIG(options.hidden % options.heads == 0,
                        "gpt: hidden {} does not divide into {} heads; the next multiples are {} and {}",
                        options.hidden, options.heads,
                        std::max(options.hidden / options.heads, std::int64_t{1}) * options.heads,
                        (options.hidden / options.heads + 1) * options.heads);
  std::vector<LayerSpec> layers{tied<TokenEmbedding>("wte", options), layer<PositionEmbedding>(options)};
  for (std::int64_t i = 0; i < options.layers; ++i) layers.push_back(layer<Block>(options));
  layers.push_back(layer<FinalNorm>(options));
  layers.push_back(tied_use<TokenEmbedding>(
      "wte", [](TokenEmbedding& wte, const at::Tensor& x_bsd) { return at::linear(x_bsd, wte.weight); }));
  return layers;
}

at::Tensor next_token_loss(const Tensors& outputs, const Tensors& targets) {
  const at::Tensor& logits_bsv = outputs.at(0);
  return at::cross_entropy_loss(logits_bsv.flatten(0, 1), targets.at(0).flatten());
}

at::Tensor gpt_momentum_mask(const Parameter& parameter) {
  if (!parameter.name.ends_with(".qkv.bias")) return {};
  const std::int64_t d = parameter.tensor().numel() / 3;
  at::Tensor mask = at::ones({3 * d});
  mask.narrow(0, d, d).zero_();
  return mask;
}

}  // namespace espalier
