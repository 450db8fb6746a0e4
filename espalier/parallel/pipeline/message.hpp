// SPDX-License-Identifier: Apache-2.0
// Private. Lists of tensors between neighbouring stages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "espalier/comm/group.hpp"
#include "espalier/comm/work.hpp"
#include "espalier/parallel/pipeline/layer_spec.hpp"
#include "espalier/parallel/pipeline/stage_links.hpp"

namespace espalier::detail {

// Sends and receives for one stage of a step.
// Sends under way are kept until they are done.
class StageMessages {
 public:
  // Where `cut_over` is a group of several, each member sends its part of every tensor, and the receiving ones gather
  // the parts in theirs: all senders must hold the same tensors.
  StageMessages(const StageLinks& links, const Group& cut_over) : links_(links), cut_over_(cut_over) {}

  // Any number of tensors of any shape and dtype: a header that says what follows, then they. Whether a tensor requires
  // a gradient travels with it, and the received one then does too.
  void send_described(const Tensors& tensors, Neighbour to, const MessageTag& tag);
  Tensors recv_described(Neighbour from, const MessageTag& tag);

  // Tensors of which the receiver knows how many come, and of which shape and dtype: as `into`, contiguous.
  void send(const at::Tensor& tensor, Neighbour to, const MessageTag& tag);
  void recv(std::span<at::Tensor> into, Neighbour from, const MessageTag& tag) const;

  // Blocks until everything is sent.
  void wait();

 private:
  void drop_finished();
  bool in_parts() const { return cut_over_.valid() && cut_over_.size() > 1; }

  StageLinks links_;
  Group cut_over_;
  std::vector<Work> under_way_;
};

}  // namespace espalier::detail
