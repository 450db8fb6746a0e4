// SPDX-License-Identifier: Apache-2.0
// Private. Lists of tensors between neighbouring stages: a header that says what follows, then the tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/comm/group.hpp"
#include "espalier/comm/work.hpp"
#include "espalier/parallel/pipeline/layer_spec.hpp"

namespace espalier::detail {

// Sends under way: kept until done, so that a backend without buffered sends keeps its tensors.
class PendingSends {
 public:
  void add(Work work) { works_.push_back(std::move(work)); }
  void drop_finished() {
    std::erase_if(works_, [](Work& work) { return work.done(); });
  }
  void wait() {
    wait_all(works_);
    works_.clear();
  }

 private:
  std::vector<Work> works_;
};

// Any number of tensors of any shape and dtype. Whether a tensor requires a gradient travels with it: the receiver's copy
// then does too, and the sender will receive exactly those gradients.
void send_tensors(const Tensors& tensors, const Group& group, std::int64_t to, std::int64_t tag, PendingSends& pending);
Tensors recv_tensors(const Group& group, std::int64_t from, std::int64_t tag);

}  // namespace espalier::detail
