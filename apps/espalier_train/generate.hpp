// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "espalier/parallel/pipeline/pipeline_module.hpp"

namespace espalier::command {

// Text after `prompt`, byte by byte: each drawn from the model's distribution at `temperature`, by a generator seeded
// with `seed`. Nothing where what the model gives is not finite. Collective over the world, the same on every rank.
std::optional<std::string> generate(const PipelineModule& module, const std::string& prompt, std::int64_t num_bytes,
                                    std::int64_t context, double temperature, std::uint64_t seed);

}  // namespace espalier::command
