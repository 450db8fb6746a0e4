// SPDX-License-Identifier: Apache-2.0
// Parameters and gradients as views of two contiguous tensors. Autograd adds to a gradient that is already defined in
// place, so the views stay valid over many backward passes; an aliased (tied) tensor simply shares the view.
#include "espalier/sharding/flat_buffer.hpp"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "espalier/base/check.hpp"

namespace espalier {

FlatBuffer::FlatBuffer(std::span<const Parameter> parameters, const MakeTensor& make_gradients) {
  ESPALIER_CHECK(!parameters.empty(), "flat buffer without parameters");
  const c10::NoGradGuard no_grad;
  std::int64_t total = 0;
  const auto options = parameters.front().tensor().options().requires_grad(false);
  for (const Parameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor();
    ESPALIER_CHECK_CONFIG(tensor.scalar_type() == options.dtype().toScalarType() && tensor.device().is_cpu(),
                          "flat buffer: parameter {} is {} on {}; expected {} on the CPU", parameter.name,
                          c10::toString(tensor.scalar_type()), tensor.device().str(), options.dtype().name());
    slices_.push_back({total, tensor.sizes().vec(), parameter.uses});
    total += tensor.numel();
  }
  values_ = at::zeros({total}, options);
  gradients_ = make_gradients ? make_gradients({total}, values_.scalar_type()) : at::empty_like(values_);
  for (std::int64_t i = 0; i < num_parameters(); ++i) {
    at::Tensor value = view(values_, i);
    value.copy_(slices_[i].uses.front());
    for (at::Tensor& use : slices_[i].uses) use.set_data(value);
  }
  values_.mutable_grad() = gradients_;
  zero_gradients();
}

at::Tensor FlatBuffer::view(const at::Tensor& flat, std::int64_t index) const {
  const Slice& slice = slices_[index];
  return flat.narrow(0, slice.offset, c10::multiply_integers(slice.shape)).view(slice.shape);
}

void FlatBuffer::zero_gradients() {
  gradients_.zero_();
  for (std::int64_t i = 0; i < num_parameters(); ++i) {
    const at::Tensor gradient = view(gradients_, i);
    for (at::Tensor& use : slices_[i].uses) {
      if (!use.grad().defined() || use.grad().data_ptr() != gradient.data_ptr()) use.mutable_grad() = gradient;
    }
  }
}

FlatBuffers make_flat_buffers(std::span<const Parameter> parameters, const ParameterRule& rule,
                              const FlatBuffer::MakeTensor& make_gradients) {
  FlatBuffers result;
  std::vector<std::vector<Parameter>> alike;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor();
    if (!tensor.requires_grad()) continue;
    const ParameterSettings settings = rule ? rule(parameters[i]) : ParameterSettings{};
    for (const double scale : {settings.lr_scale, settings.weight_decay_scale})
      ESPALIER_CHECK_CONFIG(
          std::isfinite(scale) && scale >= 0.0,
          "settings of parameter {}: lr_scale {}, weight_decay_scale {}; expected finite numbers >= 0",
          parameters[i].name, settings.lr_scale, settings.weight_decay_scale);
    std::size_t slot = 0;
    while (slot < alike.size() &&
           !(alike[slot].front().tensor().scalar_type() == tensor.scalar_type() && result.settings[slot] == settings))
      ++slot;
    if (slot == alike.size()) {
      alike.emplace_back();
      result.settings.push_back(settings);
      result.indices.emplace_back();
    }
    alike[slot].push_back(parameters[i]);
    result.indices[slot].push_back(i);
  }
  for (const auto& group : alike) result.buffers.emplace_back(group, make_gradients);
  return result;
}

}  // namespace espalier
