// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace espalier {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Activation checkpointing: runs `function` without keeping its graph and runs it again, with gradients, when its
// backward is due. Keeps only the inputs. Gradients are those of a plain call, bit for bit, as long as the function
// gives the same result twice (it must not draw random numbers from a generator that moves on in between). Works where
// no input needs a gradient (integer inputs) through the parameters alone. Without grad mode it is a plain call.
std::vector<at::Tensor> recompute(const TensorFunction& function, const std::vector<at::Tensor>& inputs);

}  // namespace espalier
