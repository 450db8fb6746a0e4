// SPDX-License-Identifier: Apache-2.0
// All ranks walk the same table of micro-batches and chunks: groups of micro-batches, in each the chunks, in each the
// micro-batches of the group. Rank r forwards 2 (P - r - 1) + (V - 1) G entries ahead, so that the first backward arrives as
// it ends, then one forward and one backward in turn. Backwards walk the table with the chunks from the last to the first.
// The rule is Megatron-core's.
#include <algorithm>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/plan/schedule/compute_generator.hpp"
#include "espalier/plan/schedule/compute_schedules.hpp"

namespace espalier {
namespace {

// What is left for the last group may not be fewer micro-batches than there are ranks.
bool is_legal_group(std::int64_t size, std::int64_t num_ranks, std::int64_t num_micro_batches) {
  const std::int64_t left = num_micro_batches % size;
  return size >= num_ranks && size <= num_micro_batches && (left == 0 || left >= num_ranks);
}

std::int64_t legal_group(std::int64_t wanted, std::int64_t num_ranks, std::int64_t num_micro_batches) {
  ESPALIER_CHECK_CONFIG(num_micro_batches >= num_ranks,
                        "schedule interleaved: {} micro-batches for {} ranks; expected at least {}", num_micro_batches,
                        num_ranks, num_ranks);
  std::vector<std::int64_t> legal;
  for (std::int64_t size = num_ranks; size <= num_micro_batches; ++size) {
    if (is_legal_group(size, num_ranks, num_micro_batches)) legal.push_back(size);
    if (wanted == 0 && !legal.empty()) return legal.front();
  }
  ESPALIER_CHECK_CONFIG(std::ranges::find(legal, wanted) != legal.end(),
                        "schedule interleaved: groups of {} of {} micro-batches over {} ranks; expected at least {} in "
                        "each, in the last one too; legal group sizes: {}",
                        wanted, num_micro_batches, num_ranks, num_ranks, fmt::join(legal, ", "));
  return wanted;
}

}  // namespace

ComputeSchedule interleaved_1f1b(std::int64_t num_ranks, std::int64_t num_micro_batches,
                                 const InterleavedOptions& options) {
  const std::int64_t num_chunks = options.num_chunks;
  ComputeSchedule schedule =
      empty_schedule("interleaved", {.num_ranks = num_ranks, .num_chunks = num_chunks}, num_micro_batches);
  ESPALIER_CHECK_CONFIG(num_ranks > 1 || num_chunks == 1,
                        "schedule interleaved: {} chunks on one rank; one rank needs no more than 1 chunk", num_chunks);
  const std::int64_t group = legal_group(options.group_size, num_ranks, num_micro_batches);

  struct Entry {
    std::int64_t micro_batch;
    std::int64_t chunk;
  };
  std::vector<Entry> table;
  for (std::int64_t first = 0; first < num_micro_batches; first += group) {
    const std::int64_t end = std::min(first + group, num_micro_batches);
    for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk)
      for (std::int64_t micro_batch = first; micro_batch < end; ++micro_batch) table.push_back({micro_batch, chunk});
  }
  const auto num_entries = std::ssize(table);
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    auto& steps = schedule.ranks[static_cast<std::size_t>(rank)];
    const std::int64_t ahead = std::min(2 * (num_ranks - rank - 1) + (num_chunks - 1) * group, num_entries);
    for (std::int64_t i = 0; i < num_entries + ahead; ++i) {
      if (i < num_entries) steps.push_back(compute_step(Pass::forward, table[i].micro_batch, table[i].chunk));
      if (i < ahead) continue;
      const Entry& entry = table[i - ahead];
      steps.push_back(compute_step(Pass::backward, entry.micro_batch, num_chunks - 1 - entry.chunk));
    }
  }
  return schedule;
}

}  // namespace espalier
