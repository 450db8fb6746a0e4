// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "espalier/comm/group.hpp"
#include "espalier/comm/work.hpp"
#include "espalier/comm/world.hpp"

namespace espalier {

// How neighbouring stages hand each other tensors: by send and recv, or by broadcasts in groups of two ranks, which
// every backend has. automatic: by send and recv where the backend has them.
enum class PointToPoint { automatic, send, broadcast };

// "auto", "send", "broadcast"; ConfigError with the legal names otherwise.
PointToPoint point_to_point_by_name(std::string_view name);
std::string_view to_string(PointToPoint how);

enum class Neighbour { previous, next };

// Which message of a link: a stage's `chunk`-th piece of the model, a micro-batch of the step.
struct MessageTag {
  std::int64_t chunk = 0;        // below 64
  std::int64_t micro_batch = 0;  // below 2^24 - 1
};

// The number that tells a message from others between the same two ranks: unlike for other directions, chunks and
// micro-batches. ConfigError where chunk or micro-batch is out of range.
std::int64_t wire_tag(bool to_next_stage, const MessageTag& tag);

// A rank's links to the previous and to the next stage. The first stage follows the last; with two stages both links
// lead to the same rank and are kept apart. Messages of a link are matched by tag, in the order sent. By broadcast the
// tag does not count: both ends take up a link's messages of both directions in one order, which check() proves of a
// schedule. A cheap handle.
class StageLinks {
 public:
  // `pipe` has one rank a stage, in their order. All its members call; blocks only where broadcasts have to be
  // connected. ConfigError when sends are asked for and the backend has none.
  StageLinks(const World& world, const Group& pipe, PointToPoint how);

  bool by_broadcast() const;

  // As espalier::send and recv: sending copies the tensor, nothing waits before the Work does.
  Work send(const at::Tensor& tensor, Neighbour to, const MessageTag& tag) const;
  Work recv(at::Tensor& tensor, Neighbour from, const MessageTag& tag) const;

  // A JSON text of any length. ConfigError when it is none. Receiving blocks, sending does not: the text arrives
  // whatever its sender does next.
  void send_json(std::string_view text, Neighbour to, const MessageTag& tag) const;
  std::string recv_json(Neighbour from, const MessageTag& tag) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace espalier
