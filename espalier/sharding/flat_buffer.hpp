// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "espalier/sharding/parameter.hpp"
#include "espalier/sharding/parameter_settings.hpp"

namespace espalier {

// Trainable parameters of one dtype, side by side in one tensor, and their gradients in another. After construction
// the modules' tensors are views of `values()` and their gradients, set to zero, are views of `gradients()`: what
// autograd accumulates is at once in one contiguous piece that can be reduced, clipped and stepped without copies.
class FlatBuffer {
 public:
  // Makes the tensor of the gradients, such as World::host_buffer; its values do not matter.
  using MakeTensor = std::function<at::Tensor(at::IntArrayRef sizes, at::ScalarType dtype)>;

  // Takes over all `parameters` (same dtype, CPU). Order and offsets are those of the list. ConfigError if dtypes
  // differ.
  explicit FlatBuffer(std::span<const Parameter> parameters, const MakeTensor& make_gradients = nullptr);

  // values().grad() is gradients().
  at::Tensor& values() { return values_; }
  at::Tensor& gradients() { return gradients_; }

  // Parameter i's part of a tensor of the buffer's length (values(), gradients(), an optimizer's state), in its shape.
  at::Tensor view(const at::Tensor& flat, std::int64_t index) const;
  std::int64_t num_parameters() const { return static_cast<std::int64_t>(slices_.size()); }

  // Sets all gradients to zero, and puts back the views where a program replaced a gradient.
  void zero_gradients();

 private:
  struct Slice {
    std::int64_t offset;
    std::vector<std::int64_t> shape;
    std::vector<at::Tensor> uses;
  };

  at::Tensor values_;
  at::Tensor gradients_;
  std::vector<Slice> slices_;
};

// One buffer for each dtype and settings among the parameters that require gradients, in order of first appearance;
// `indices` tells which entries of `parameters` each buffer holds, in its order.
struct FlatBuffers {
  std::vector<FlatBuffer> buffers;
  std::vector<ParameterSettings> settings;
  std::vector<std::vector<std::size_t>> indices;
};
FlatBuffers make_flat_buffers(std::span<const Parameter> parameters, const ParameterRule& rule = nullptr,
                              const FlatBuffer::MakeTensor& make_gradients = nullptr);

}  // namespace espalier
