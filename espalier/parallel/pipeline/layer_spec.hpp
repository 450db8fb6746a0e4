// SPDX-License-Identifier: Apache-2.0
// Layers as factories: a stage builds only its own. Any torch::nn module or callable whose forward takes 1 to 6 tensors
// (or a std::vector of them) and returns a tensor, a std::tuple or a std::vector of tensors is a layer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace espalier {

using Tensors = std::vector<at::Tensor>;

// One entry of a model's list of layers. Made by layer(), layer_of(), function(), tied() and tied_use().
struct LayerSpec {
  std::string type_name;                // for reports, errors and partition by type: "Block", "Embedding", ...
  std::string tied_key;                 // not empty: shares parameters with all layers of this key
  std::vector<std::string> attributes;  // which parameters are tied ("weight"); empty: all. The first use decides.
  // Makes the module; null for a tied use, which takes the key's first spec's.
  std::function<std::shared_ptr<torch::nn::Module>()> build;
  std::function<Tensors(torch::nn::Module&, const Tensors&)> forward;
};

namespace detail {

// The module type behind a LibTorch module holder (Linear -> LinearImpl), or the type itself.
template <class M>
struct ModuleType {
  using type = M;
};
template <class M>
  requires requires { typename M::ContainedType; }
struct ModuleType<M> {
  using type = typename M::ContainedType;
};

inline Tensors to_tensors(at::Tensor tensor) { return {std::move(tensor)}; }
inline Tensors to_tensors(Tensors tensors) { return tensors; }
template <class... T>
Tensors to_tensors(std::tuple<T...> tuple) {
  return std::apply([](auto&&... tensors) { return Tensors{std::move(tensors)...}; }, std::move(tuple));
}

// ConfigError: the layer does not take this many tensors.
[[noreturn]] void throw_arity(const std::string& layer, const std::string& accepted, std::size_t given);

template <std::size_t>
using TensorArgument = const at::Tensor&;

// Calls `function` with the tensors spread over its parameters; with the whole list if it takes no single tensors.
template <class F>
Tensors spread(const F& function, const Tensors& inputs, const std::string& layer) {
  Tensors outputs;
  bool called = false;
  std::string accepted;
  const auto try_arity = [&]<std::size_t... I>(std::index_sequence<I...>) {
    if constexpr (std::invocable<F, TensorArgument<I>...>) {
      accepted += (accepted.empty() ? "" : " or ") + std::to_string(sizeof...(I));
      if (inputs.size() == sizeof...(I)) {
        outputs = to_tensors(function(inputs[I]...));
        called = true;
      }
    }
  };
  [&]<std::size_t... N>(std::index_sequence<N...>) {
    (try_arity(std::make_index_sequence<N + 1>{}), ...);
  }(std::make_index_sequence<6>{});
  if constexpr (std::invocable<F, const Tensors&>) {
    if (accepted.empty()) return to_tensors(function(inputs));
  }
  if (!called) throw_arity(layer, accepted, inputs.size());
  return outputs;
}

// "torch::nn::LinearImpl" -> "Linear".
std::string layer_type_name(const std::string& demangled);

template <class M>
LayerSpec spec_of_type() {
  using Module = typename ModuleType<M>::type;
  LayerSpec spec;
  spec.type_name = layer_type_name(c10::demangle(typeid(Module).name()));
  spec.forward = [name = spec.type_name](torch::nn::Module& module, const Tensors& inputs) {
    auto& typed = static_cast<Module&>(module);
    const auto call = [&](const auto&... tensors) -> decltype(typed.forward(tensors...)) {
      return typed.forward(tensors...);
    };
    return spread(call, inputs, name);
  };
  return spec;
}

}  // namespace detail

// A module of type M (torch::nn::Linear, your own module or its holder), made with these arguments.
template <class M, class... Args>
LayerSpec layer(Args... args) {
  LayerSpec spec = detail::spec_of_type<M>();
  spec.build = [=] { return std::make_shared<typename detail::ModuleType<M>::type>(args...); };
  return spec;
}

// A module that exists already (a torch::nn::Sequential, say), built alike on every rank. Each stage trains a copy of
// it (Module::clone), so it must be cloneable, as LibTorch's own modules and those derived from nn::Cloneable are.
template <class M>
LayerSpec layer_of(std::shared_ptr<M> module) {
  LayerSpec spec = detail::spec_of_type<M>();
  spec.build = [module] { return module->clone(); };
  return spec;
}

// A callable without parameters of its own: function("relu", [](const at::Tensor& x) { return x.relu(); }).
template <class F>
LayerSpec function(std::string name, F callable) {
  LayerSpec spec;
  spec.type_name = std::move(name);
  spec.build = [] { return std::make_shared<torch::nn::Module>(); };
  spec.forward = [name = spec.type_name, callable](torch::nn::Module&, const Tensors& inputs) {
    return detail::spread(callable, inputs, name);
  };
  return spec;
}

// The first use of a tied key: owns constructor, seed and the choice of attributes.
template <class M, class... Args>
LayerSpec tied(std::string key, Args... args) {
  LayerSpec spec = layer<M>(args...);
  spec.tied_key = std::move(key);
  return spec;
}

// A later use of a tied key with a forward of its own:
//   tied_use<nn::Embedding>("wte", [](nn::EmbeddingImpl& e, const at::Tensor& x) { return x.matmul(e.weight.t()); })
template <class M, class F>
LayerSpec tied_use(std::string key, F callable) {
  LayerSpec spec = detail::spec_of_type<M>();
  spec.tied_key = std::move(key);
  spec.forward = [name = spec.type_name, callable](torch::nn::Module& module, const Tensors& inputs) {
    auto& typed = static_cast<typename detail::ModuleType<M>::type&>(module);
    const auto call = [&](const auto&... tensors) -> decltype(callable(typed, tensors...)) {
      return callable(typed, tensors...);
    };
    return detail::spread(call, inputs, name);
  };
  return spec;
}

}  // namespace espalier
