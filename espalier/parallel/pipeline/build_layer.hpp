// SPDX-License-Identifier: Apache-2.0
// Private.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "espalier/parallel/pipeline/layer_spec.hpp"

namespace espalier::detail {

// Makes the layer's module with LibTorch's default generator seeded by `seed` (or by a user's function given the seed)
// and puts the generator back. LibTorch's initialisers draw from that one generator of the process, so only one layer
// is built at a time in a process.
std::shared_ptr<torch::nn::Module> build_layer(const LayerSpec& layer, std::uint64_t seed,
                                               const std::function<void(std::uint64_t)>& seed_function);

}  // namespace espalier::detail
