// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/validation.hpp"

#include <algorithm>
#include <utility>

#include "espalier/comm/together.hpp"

namespace espalier::command {

std::vector<MicroBatch> micro_batches_of(const ByteText& text, std::span<const std::int64_t> samples, std::int64_t size,
                                         const PipelineModule& module) {
  std::vector<MicroBatch> result;
  if (!module.first_stage() && !module.last_stage()) return result;
  for (; !samples.empty(); samples = samples.subspan(static_cast<std::size_t>(size))) {
    const ByteText::Batch batch = text.batch(samples.first(static_cast<std::size_t>(size)));
    result.push_back({{batch.input}, {batch.target}});
  }
  return result;
}

Validation::Validation(ByteText text, const ValidationOptions& options, const Mesh& mesh)
    : text_(std::move(text)), options_(options), mesh_(mesh), num_batches_(text_.num_samples() / options.batch) {
  if (options.max_batches > 0) num_batches_ = std::min(num_batches_, options.max_batches);
}

double Validation::loss(Engine& engine) const {
  const std::int64_t mine = options_.batch / mesh_.size("data");
  const std::int64_t used = num_batches_ * options_.batch, there = text_.num_samples();
  double sum = 0.0;
  for (std::int64_t i = 0; i < num_batches_; ++i) {
    const std::int64_t first = i * options_.batch + mesh_.coordinate("data") * mine;
    std::vector<std::int64_t> samples;
    for (std::int64_t k = first; k < first + mine; ++k) samples.push_back(there / used * k + there % used * k / used);
    const auto micro_batches = detail::together(mesh_.world().group(), [&] {
      return micro_batches_of(text_, samples, mine / options_.micro_batches, engine.module());
    });
    sum += engine.eval_batch([&](std::int64_t m) { return micro_batches[static_cast<std::size_t>(m)]; },
                             options_.micro_batches);
  }
  return sum / static_cast<double>(num_batches_);
}

}  // namespace espalier::command
