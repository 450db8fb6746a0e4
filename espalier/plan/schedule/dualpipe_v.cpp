// SPDX-License-Identifier: Apache-2.0
// Rank r holds stage r (chunk 0, the way down) and stage 2 P - 1 - r (chunk 1, the way up), and goes through eight phases:
// forwards down; forwards of both ways; backwards up with their weights' halves at once and forwards up; both directions of
// both ways in turn; the same without forwards down; backwards of both ways, halved from the middle on; weights' halves
// between the last backwards down; the weights' halves that are left. A halved backward leaves its weights' half in a queue.
// The phases are those of DeepSeek's DualPipeV, whose pairs run side by side; here they are one after the other.
#include <deque>

#include "espalier/base/check.hpp"
#include "espalier/plan/schedule/compute_generator.hpp"
#include "espalier/plan/schedule/compute_schedules.hpp"

namespace espalier {
namespace {

class DualPipeRank {
 public:
  explicit DualPipeRank(std::vector<ComputeStep>& steps) : steps_(steps) {}

  void forward(std::int64_t chunk) { steps_.push_back(compute_step(Pass::forward, num_forwards_[chunk]++, chunk)); }

  void backward(std::int64_t chunk, bool halved = false) {
    const std::int64_t micro_batch = num_backwards_[chunk]++;
    steps_.push_back(compute_step(halved ? Pass::backward_input : Pass::backward, micro_batch, chunk));
    if (halved) weights_.push_back(compute_step(Pass::backward_weight, micro_batch, chunk));
  }

  void weight() {
    steps_.push_back(weights_.front());
    weights_.pop_front();
  }

 private:
  std::vector<ComputeStep>& steps_;
  std::int64_t num_forwards_[2] = {0, 0};
  std::int64_t num_backwards_[2] = {0, 0};
  std::deque<ComputeStep> weights_;
};

void write_dualpipe_v(std::int64_t rank, std::int64_t num_ranks, std::int64_t num_micro_batches,
                      std::vector<ComputeStep>& steps) {
  const std::int64_t after = num_ranks - rank - 1;  // ranks between this one and the turn
  const auto times = [](std::int64_t count, const auto& body) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
  };
  DualPipeRank r(steps);
  times(2 * after, [&](std::int64_t) { r.forward(0); });
  times(rank + 1, [&](std::int64_t) { r.forward(0), r.forward(1); });
  times(after, [&](std::int64_t) { r.backward(1, /*halved=*/true), r.weight(), r.forward(1); });
  times(num_micro_batches - 2 * num_ranks + rank + 1, [&](std::int64_t) {
    r.forward(0), r.backward(1);
    r.forward(1), r.backward(0);
  });
  times(after, [&](std::int64_t) {
    r.backward(1);
    r.forward(1), r.backward(0);
  });
  times(rank + 1, [&](std::int64_t i) {
    const std::int64_t half = (rank + 1) / 2;  // an even rank's middle lies between the two backwards
    r.backward(1, i > half || (i == half && rank % 2 == 1));
    r.backward(0, i >= half);
  });
  times(after, [&](std::int64_t) { r.weight(), r.backward(0, /*halved=*/true); });
  times(rank + 1, [&](std::int64_t) { r.weight(); });
}

}  // namespace

ComputeSchedule dualpipe_v(std::int64_t num_ranks, std::int64_t num_micro_batches) {
  ComputeSchedule schedule = empty_schedule(
      "dualpipev", {.num_ranks = num_ranks, .num_chunks = 2, .shape = ChunkPlaces::Shape::v}, num_micro_batches);
  ESPALIER_CHECK_CONFIG(num_micro_batches >= 2 * num_ranks,
                        "schedule dualpipev: {} micro-batches for {} ranks; expected at least {}", num_micro_batches,
                        num_ranks, 2 * num_ranks);
  for (std::int64_t rank = 0; rank < num_ranks; ++rank)
    write_dualpipe_v(rank, num_ranks, num_micro_batches, schedule.ranks[static_cast<std::size_t>(rank)]);
  return schedule;
}

}  // namespace espalier
