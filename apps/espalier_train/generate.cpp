// SPDX-License-Identifier: Apache-2.0
// One forward pass through all stages for each byte; the last stage draws it and tells the others.
#include "apps/espalier_train/generate.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>

#include "espalier/comm/collectives.hpp"
#include "espalier/parallel/pipeline/executor.hpp"
#include "espalier/plan/schedule/schedules.hpp"

namespace espalier::command {
namespace {

constexpr std::int64_t kNotFinite = -1;  // in place of a byte

}  // namespace

std::optional<std::string> generate(const PipelineModule& module, const std::string& prompt, std::int64_t num_bytes,
                                    std::int64_t context, double temperature, std::uint64_t seed) {
  const Schedule schedule = forward_only().generate(module.num_stages(), 1);
  const Group& pipe = module.mesh().group("pipe");
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<std::int64_t> bytes;
  for (const char c : prompt) bytes.push_back(static_cast<unsigned char>(c));
  module.train(false);
  for (std::int64_t i = 0; i < num_bytes; ++i) {
    const std::int64_t seen = std::min<std::int64_t>(std::ssize(bytes), context);
    const at::Tensor window =
        at::tensor(at::ArrayRef<std::int64_t>(bytes).slice(bytes.size() - seen, seen)).unsqueeze(0);
    at::Tensor next = at::full({1}, kNotFinite, at::kLong);
    const auto draw = [&](const Tensors& outputs, const Tensors&) {
      const at::Tensor logits = outputs[0][0][-1].to(at::kDouble) / temperature;
      if (at::isfinite(logits).all().item<bool>())
        next = at::multinomial(logits.softmax(0), 1, /*replacement=*/false, generator);
      return at::zeros({});
    };
    execute(module, schedule, [&](std::int64_t) { return MicroBatch{{window}, {}}; }, draw);
    broadcast_(next, pipe, pipe.size() - 1).wait();
    bytes.push_back(next.item<std::int64_t>());
    if (bytes.back() == kNotFinite) break;
  }
  module.train(true);
  if (bytes.back() == kNotFinite) return std::nullopt;
  return std::string(bytes.begin() + std::ssize(prompt), bytes.end());
}

}  // namespace espalier::command
