// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/compute_schedules.hpp"

#include <algorithm>
#include <array>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

using Size = ComputeScheduleSize;

struct ComputeKind {
  std::string_view name;
  ComputeSchedule (*generate)(const Size& size);
};

constexpr std::array<ComputeKind, 5> kComputeKinds{{
    {"interleaved",
     [](const Size& size) {
       return interleaved_1f1b(size.num_ranks, size.num_micro_batches,
                               {.num_chunks = size.num_chunks, .group_size = size.group_size});
     }},
    {"breadth-first",
     [](const Size& size) { return breadth_first(size.num_ranks, size.num_micro_batches, size.num_chunks); }},
    {"zb-1p", [](const Size& size) { return zb_1p(size.num_ranks, size.num_micro_batches); }},
    {"zb-2p", [](const Size& size) { return zb_2p(size.num_ranks, size.num_micro_batches); }},
    {"dualpipev", [](const Size& size) { return dualpipe_v(size.num_ranks, size.num_micro_batches); }},
}};

constexpr auto kComputeNames = [] {
  std::array<std::string_view, kComputeKinds.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kComputeKinds[i].name;
  return names;
}();

}  // namespace

ComputeSchedule compute_schedule_by_name(std::string_view name, const Size& size) {
  const auto found = std::ranges::find(kComputeKinds, name, &ComputeKind::name);
  ESPALIER_CHECK_CONFIG(found != kComputeKinds.end(), "schedule '{}' is unknown; there are {}", name,
                        fmt::join(kComputeNames, ", "));
  return found->generate(size);
}

std::span<const std::string_view> compute_schedule_names() { return kComputeNames; }

}  // namespace espalier
