// SPDX-License-Identifier: Apache-2.0
// A *section* is a run of a flat tensor that shares a scale: one tied parameter, or all others between two of them. Its
// compressed all-reduce, which holds the errors, is made at the first compressed update.
#include "espalier/train/optimizers/onebit_adam.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/parallel/compress/compressed_all_reduce.hpp"

namespace espalier {
namespace {

struct Section {
  std::int64_t begin;
  std::int64_t num_elems;
  std::optional<CompressedAllReduce> mean = {};

  at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, num_elems); }
};

std::vector<Section> sections_of(std::span<const Parameter> parameters) {
  std::vector<Section> sections;
  std::int64_t begin = 0;
  bool open = false;  // the last section takes further parameters
  for (const Parameter& parameter : parameters) {
    const std::int64_t count = parameter.tensor().numel();
    const bool tied = parameter.placement.tied();
    if (open && !tied) {
      sections.back().num_elems += count;
    } else {
      sections.push_back({.begin = begin, .num_elems = count});
    }
    open = !tied;
    begin += count;
  }
  return sections;
}

// Undefined when no parameter has one.
at::Tensor mask_of(const FlatParameters& flat, const std::function<at::Tensor(const Parameter&)>& momentum_mask) {
  at::Tensor whole;
  std::int64_t begin = 0;
  for (const Parameter& parameter : flat.parameters) {
    const std::int64_t count = parameter.tensor().numel();
    const at::Tensor mask = momentum_mask ? momentum_mask(parameter) : at::Tensor();
    if (mask.defined()) {
      ESPALIER_CHECK_CONFIG(mask.sizes() == parameter.tensor().sizes(),
                            "1-bit adam: the momentum mask of {} is [{}], the parameter [{}]; expected the same shape",
                            parameter.name, fmt::join(mask.sizes(), ","), fmt::join(parameter.tensor().sizes(), ","));
      if (!whole.defined()) whole = at::ones_like(flat.values);
      whole.narrow(0, begin, count).copy_(mask.reshape({-1}));
    }
    begin += count;
  }
  return whole;
}

class OnebitAdam final : public Optimizer {
 public:
  OnebitAdam(const OnebitAdamOptions& options, std::vector<FlatParameters> flat, Group replicas)
      : options_(options), replicas_(std::move(replicas)) {
    const at::NoGradGuard no_grad;
    for (FlatParameters& one : flat) {
      tensors_.push_back({.values = one.values,
                          .settings = one.settings,
                          .exp_avg = at::zeros_like(one.values),
                          .exp_avg_sq = at::zeros_like(one.values),
                          .mask = mask_of(one, options.momentum_mask),
                          .sections = sections_of(one.parameters)});
    }
  }

  AveragingCost step(double lr) override {
    const at::NoGradGuard no_grad;
    const bool frozen = averages();
    if (frozen) make_errors();
    ++num_steps_;
    const auto correction = [&](double beta, std::int64_t steps) {
      return options_.bias_correction ? 1.0 - std::pow(beta, static_cast<double>(steps)) : 1.0;
    };
    const double correction1 = correction(options_.beta1, num_steps_);
    const double correction2 = correction(options_.beta2, std::min(num_steps_, options_.freeze_step));
    AveragingCost cost;
    for (Tensor& one : tensors_) {
      const at::Tensor& gradient = one.values.grad();
      one.exp_avg.mul_(options_.beta1).add_(gradient, 1.0 - options_.beta1);
      if (frozen) {
        average_momentum(one, cost);
      } else {
        one.exp_avg_sq.mul_(options_.beta2).addcmul_(gradient, gradient, 1.0 - options_.beta2);
      }
      const at::Tensor denominator = one.exp_avg_sq.sqrt().div_(std::sqrt(correction2)).add_(options_.eps);
      const double own_lr = lr * one.settings.lr_scale;
      one.values.mul_(1.0 - own_lr * options_.weight_decay * one.settings.weight_decay_scale);
      one.values.addcdiv_(one.exp_avg, denominator, -own_lr / correction1);
    }
    return cost;
  }

  std::vector<Fact> facts() const override {
    return {{"optimizer", "1-bit Adam"},
            {"optimizer.lr", fact_text(options_.lr)},
            {"optimizer.beta1", fact_text(options_.beta1)},
            {"optimizer.beta2", fact_text(options_.beta2)},
            {"optimizer.eps", fact_text(options_.eps)},
            {"optimizer.weight_decay", fact_text(options_.weight_decay)},
            {"optimizer.freeze_step", fact_text(options_.freeze_step)},
            {"optimizer.bias_correction", fact_text(options_.bias_correction)},
            {"optimizer.momentum_mask", fact_text(options_.momentum_mask != nullptr)},
            {"optimizer.deepspeed_padding", fact_text(options_.deepspeed_padding)}};
  }
  double lr() const override { return options_.lr; }
  bool averages() const override { return num_steps_ >= options_.freeze_step; }
  std::int64_t num_steps() const override { return num_steps_; }

  std::vector<OptimizerState> state(std::size_t tensor) override {
    const Tensor& one = tensors_[tensor];
    std::vector<OptimizerState> state{{"exp_avg", one.exp_avg}, {"exp_avg_sq", one.exp_avg_sq}};
    if (one.pending.defined()) {
      state.push_back({.name = "worker_error", .tensor = one.pending, .of_each_replica = true});
      state.push_back({.name = "server_error", .tensor = at::zeros_like(one.pending), .with_replicas = true});
    } else if (num_steps_ > options_.freeze_step && replicas_.size() > 1) {
      std::vector<at::Tensor> worker, server;
      for (const Section& section : one.sections) {
        const at::Tensor mine = section.mean->server_error();
        at::Tensor whole = at::empty({section.mean->padded_elems()}, mine.options());
        all_gather_into(whole, mine, replicas_).wait();
        worker.push_back(section.mean->worker_error().narrow(0, 0, section.num_elems));
        server.push_back(whole.narrow(0, 0, section.num_elems));
      }
      state.push_back({.name = "worker_error", .tensor = at::cat(worker), .of_each_replica = true});
      state.push_back({.name = "server_error", .tensor = at::cat(server), .with_replicas = true});
    }
    return state;
  }

  void restore(std::int64_t num_steps) override {
    num_steps_ = num_steps;
    for (Tensor& one : tensors_) {
      one.exp_avg.zero_();
      one.exp_avg_sq.zero_();
      one.pending.reset();
      for (Section& section : one.sections) section.mean.reset();
    }
    if (num_steps <= options_.freeze_step) return;
    make_errors();
    if (replicas_.size() > 1) return;
    for (Tensor& one : tensors_) one.pending = at::zeros_like(one.exp_avg);
  }

  void restored(std::size_t tensor, std::span<const OptimizerState> filled) override {
    Tensor& one = tensors_[tensor];
    const auto find = [&](const char* name) { return std::ranges::find(filled, name, &OptimizerState::name); };
    const auto worker = find("worker_error"), server = find("server_error");
    if (worker == filled.end()) return;
    if (one.pending.defined()) {
      one.pending = worker->tensor + server->tensor;
      return;
    }
    for (Section& section : one.sections) {
      const std::int64_t padded = section.mean->padded_elems(), chunk = padded / replicas_.size();
      const auto padded_part = [&](const at::Tensor& flat) {
        return at::constant_pad_nd(section.of(flat), {0, padded - section.num_elems});
      };
      section.mean->set_errors(padded_part(worker->tensor),
                               padded_part(server->tensor).narrow(0, replicas_.rank() * chunk, chunk));
    }
  }

 private:
  struct Tensor {
    at::Tensor values;
    ParameterSettings settings;
    at::Tensor exp_avg, exp_avg_sq;
    at::Tensor mask;  // undefined: nothing is masked
    std::vector<Section> sections;
    at::Tensor pending = {};  // errors of more replicas than the one there is now, due at its next update
  };

  // Collective over the replicas where there are none yet.
  void make_errors() {
    if (replicas_.size() == 1) return;
    for (Tensor& one : tensors_) {
      for (Section& section : one.sections) {
        if (section.mean) continue;
        CompressionOptions options;
        if (options_.deepspeed_padding) {
          options = {.padded_elems = deepspeed_compressed_length(section.num_elems, replicas_.size()),
                     .padding_in_scale = true};
        }
        section.mean.emplace(replicas_, section.num_elems, one.values.scalar_type(), options);
      }
    }
  }

  void average_momentum(Tensor& one, AveragingCost& cost) {
    using Clock = std::chrono::steady_clock;
    if (one.mask.defined()) one.exp_avg.mul_(one.mask);
    if (one.pending.defined()) one.exp_avg.add_(std::exchange(one.pending, {}));
    for (Section& section : one.sections) {
      if (!section.mean) continue;
      const auto begin = Clock::now();
      const std::int64_t bytes_before = section.mean->bytes_sent();
      at::Tensor momentum = section.of(one.exp_avg);
      section.mean->mean_(momentum);
      cost.bytes_sent += section.mean->bytes_sent() - bytes_before;
      cost.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (one.mask.defined()) one.exp_avg.mul_(one.mask);
  }

  OnebitAdamOptions options_;
  Group replicas_;
  std::vector<Tensor> tensors_;
  std::int64_t num_steps_ = 0;
};

bool is_fraction(double beta) { return beta >= 0.0 && beta < 1.0; }

}  // namespace

OptimizerFactory onebit_adam(const OnebitAdamOptions& options) {
  ESPALIER_CHECK_CONFIG(std::isfinite(options.lr) && options.lr >= 0.0,
                        "1-bit adam: lr is {}; expected a finite number >= 0", options.lr);
  ESPALIER_CHECK_CONFIG(is_fraction(options.beta1) && is_fraction(options.beta2),
                        "1-bit adam: betas are {} and {}; expected numbers from 0 to below 1", options.beta1,
                        options.beta2);
  ESPALIER_CHECK_CONFIG(
      options.freeze_step >= 1,
      "1-bit adam: freeze_step is {}; expected at least 1: the variance that is frozen comes from the steps before",
      options.freeze_step);
  return [options](std::vector<FlatParameters> flat, const Group& replicas) -> std::unique_ptr<Optimizer> {
    return std::make_unique<OnebitAdam>(options, std::move(flat), replicas);
  };
}

}  // namespace espalier
