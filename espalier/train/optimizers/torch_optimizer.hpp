// SPDX-License-Identifier: Apache-2.0
// LibTorch's own optimizers as espalier::Optimizer:
// torch_optimizer<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-2)). All of them that work element by element:
// SGD, Adam, AdamW, Adagrad, RMSprop.
#pragma once

#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/train/optimizers/optimizer.hpp"

namespace espalier {

namespace detail {

template <class State>
struct StateField {
  std::string name;
  at::Tensor& (*tensor)(State&);
};

// What a LibTorch optimizer keeps for each element under given options, and how it counts steps.
template <class Torch>
struct TorchState;

template <class State, class Options>
std::vector<StateField<State>> adam_fields(const Options& options) {
  std::vector<StateField<State>> fields{{"exp_avg", [](State& s) -> at::Tensor& { return s.exp_avg(); }},
                                        {"exp_avg_sq", [](State& s) -> at::Tensor& { return s.exp_avg_sq(); }}};
  if (options.amsgrad()) {
    fields.push_back({"max_exp_avg_sq", [](State& s) -> at::Tensor& { return s.max_exp_avg_sq(); }});
  }
  return fields;
}

template <class Options>
std::vector<Fact> adam_facts(const char* name, const Options& options) {
  const auto [beta1, beta2] = options.betas();
  return {{"optimizer", name},
          {"optimizer.lr", fact_text(options.lr())},
          {"optimizer.beta1", fact_text(beta1)},
          {"optimizer.beta2", fact_text(beta2)},
          {"optimizer.eps", fact_text(options.eps())},
          {"optimizer.weight_decay", fact_text(options.weight_decay())},
          {"optimizer.amsgrad", fact_text(options.amsgrad())}};
}

template <>
struct TorchState<torch::optim::Adam> {
  using State = torch::optim::AdamParamState;
  using Options = torch::optim::AdamOptions;
  static auto fields(const Options& options) { return adam_fields<State>(options); }
  static auto facts(const Options& options) { return adam_facts("Adam", options); }
  static void set_step(State& state, std::int64_t step) { state.step(step); }
};

template <>
struct TorchState<torch::optim::AdamW> {
  using State = torch::optim::AdamWParamState;
  using Options = torch::optim::AdamWOptions;
  static auto fields(const Options& options) { return adam_fields<State>(options); }
  static auto facts(const Options& options) { return adam_facts("AdamW", options); }
  static void set_step(State& state, std::int64_t step) { state.step(step); }
};

template <>
struct TorchState<torch::optim::Adagrad> {
  using State = torch::optim::AdagradParamState;
  using Options = torch::optim::AdagradOptions;
  static std::vector<StateField<State>> fields(const Options&) {
    return {{"sum", [](State& s) -> at::Tensor& { return s.sum(); }}};
  }
  static std::vector<Fact> facts(const Options& options) {
    return {{"optimizer", "Adagrad"},
            {"optimizer.lr", fact_text(options.lr())},
            {"optimizer.lr_decay", fact_text(options.lr_decay())},
            {"optimizer.eps", fact_text(options.eps())},
            {"optimizer.weight_decay", fact_text(options.weight_decay())},
            {"optimizer.initial_accumulator_value", fact_text(options.initial_accumulator_value())}};
  }
  static void set_step(State& state, std::int64_t step) { state.step(step); }
};

template <>
struct TorchState<torch::optim::RMSprop> {
  using State = torch::optim::RMSpropParamState;
  using Options = torch::optim::RMSpropOptions;
  static std::vector<StateField<State>> fields(const Options& options) {
    std::vector<StateField<State>> fields{{"square_avg", [](State& s) -> at::Tensor& { return s.square_avg(); }}};
    if (options.momentum() > 0) {
      fields.push_back({"momentum_buffer", [](State& s) -> at::Tensor& { return s.momentum_buffer(); }});
    }
    if (options.centered()) fields.push_back({"grad_avg", [](State& s) -> at::Tensor& { return s.grad_avg(); }});
    return fields;
  }
  static std::vector<Fact> facts(const Options& options) {
    return {{"optimizer", "RMSprop"},
            {"optimizer.lr", fact_text(options.lr())},
            {"optimizer.alpha", fact_text(options.alpha())},
            {"optimizer.eps", fact_text(options.eps())},
            {"optimizer.weight_decay", fact_text(options.weight_decay())},
            {"optimizer.momentum", fact_text(options.momentum())},
            {"optimizer.centered", fact_text(options.centered())}};
  }
  static void set_step(State& state, std::int64_t step) { state.step(step); }
};

template <>
struct TorchState<torch::optim::SGD> {
  using State = torch::optim::SGDParamState;
  using Options = torch::optim::SGDOptions;
  static std::vector<StateField<State>> fields(const Options& options) {
    if (options.momentum() == 0) return {};
    return {{"momentum_buffer", [](State& s) -> at::Tensor& { return s.momentum_buffer(); }}};
  }
  static std::vector<Fact> facts(const Options& options) {
    return {{"optimizer", "SGD"},
            {"optimizer.lr", fact_text(options.lr())},
            {"optimizer.momentum", fact_text(options.momentum())},
            {"optimizer.dampening", fact_text(options.dampening())},
            {"optimizer.weight_decay", fact_text(options.weight_decay())},
            {"optimizer.nesterov", fact_text(options.nesterov())}};
  }
  static void set_step(State&, std::int64_t) {}
};

template <class Torch>
class TorchOptimizer final : public Optimizer {
  using Traits = TorchState<Torch>;
  using State = typename Traits::State;

 public:
  TorchOptimizer(std::span<const FlatParameters> flat, const typename Traits::Options& options)
      : lr_(options.lr()),
        facts_(Traits::facts(options)),
        fields_(Traits::fields(options)),
        optimizer_(groups_of(flat, options), options) {
    for (const FlatParameters& one : flat) {
      values_.push_back(one.values);
      lr_scales_.push_back(one.settings.lr_scale);
    }
  }

  AveragingCost step(double lr) override {
    for (std::size_t i = 0; i < values_.size(); ++i) optimizer_.param_groups()[i].options().set_lr(lr * lr_scales_[i]);
    if (!values_.empty()) optimizer_.step();
    ++num_steps_;
    return {};
  }

  std::vector<Fact> facts() const override { return facts_; }
  double lr() const override { return lr_; }

  std::vector<OptimizerState> state(std::size_t tensor) override {
    const at::Tensor& values = values_[tensor];
    const auto found = optimizer_.state().find(values.unsafeGetTensorImpl());
    std::vector<OptimizerState> state;
    for (const auto& field : fields_) {
      const bool there = found != optimizer_.state().end();
      state.push_back({field.name, there ? field.tensor(static_cast<State&>(*found->second)) : at::zeros_like(values)});
    }
    return state;
  }

  std::int64_t num_steps() const override { return num_steps_; }

  void restore(std::int64_t num_steps) override {
    num_steps_ = num_steps;
    optimizer_.state().clear();
    if (num_steps == 0) return;
    for (const at::Tensor& value : values_) {
      auto state = std::make_unique<State>();
      Traits::set_step(*state, num_steps);
      for (const auto& field : fields_) field.tensor(*state) = at::zeros_like(value);
      optimizer_.state()[value.unsafeGetTensorImpl()] = std::move(state);
    }
  }

 private:
  // One of LibTorch's groups for each flat tensor.
  static std::vector<torch::optim::OptimizerParamGroup> groups_of(std::span<const FlatParameters> flat,
                                                                  const typename Traits::Options& options) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const FlatParameters& one : flat) {
      auto own = std::make_unique<typename Traits::Options>(options);
      own->weight_decay(options.weight_decay() * one.settings.weight_decay_scale);
      groups.emplace_back(std::vector<at::Tensor>{one.values}, std::move(own));
    }
    return groups;
  }

  std::vector<at::Tensor> values_;
  std::vector<double> lr_scales_;
  double lr_;
  std::vector<Fact> facts_;
  std::vector<StateField<State>> fields_;
  Torch optimizer_;
  std::int64_t num_steps_ = 0;
};

}  // namespace detail

template <class Torch>
OptimizerFactory torch_optimizer(typename detail::TorchState<Torch>::Options options) {
  return [options = std::move(options)](const std::vector<FlatParameters>& flat,
                                        const Group&) -> std::unique_ptr<Optimizer> {
    return std::make_unique<detail::TorchOptimizer<Torch>>(flat, options);
  };
}

}  // namespace espalier
