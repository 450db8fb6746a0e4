// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/generator.hpp"

#include <utility>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

constexpr std::int64_t kMaxCells = 10'000'000;  // stages x micro-batches: a listing of about 1 GB

}  // namespace

ScheduleKind make_kind(std::string name, std::function<StageProgram(const StagePlace&)> write) {
  auto generate = [name, write = std::move(write)](std::int64_t num_stages, std::int64_t num_micro_batches) {
    ESPALIER_CHECK_CONFIG(num_stages >= 1, "schedule {}: {} stages; a schedule needs at least 1", name, num_stages);
    ESPALIER_CHECK_CONFIG(num_micro_batches >= 1, "schedule {}: {} micro-batches; a schedule needs at least 1", name,
                          num_micro_batches);
    ESPALIER_CHECK_CONFIG(num_stages <= kMaxCells && num_micro_batches <= kMaxCells / num_stages,
                          "schedule {}: {} stages x {} micro-batches; their product may be at most {}", name,
                          num_stages, num_micro_batches, kMaxCells);
    Schedule schedule{.name = name, .num_micro_batches = num_micro_batches, .stages = {}};
    for (std::int64_t stage = 0; stage < num_stages; ++stage)
      schedule.stages.push_back(
          write({.stage = stage, .num_stages = num_stages, .num_micro_batches = num_micro_batches}));
    return schedule;
  };
  return {.name = name, .generate = std::move(generate)};
}

Instruction in_slot(Op op, std::int64_t micro_batch, std::int64_t num_buffers) {
  return {.op = op,
          .buffer = static_cast<std::int32_t>(micro_batch % num_buffers),
          .micro_batch = static_cast<std::int32_t>(micro_batch)};
}

}  // namespace espalier
