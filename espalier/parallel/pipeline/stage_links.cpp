// SPDX-License-Identifier: Apache-2.0
// Link s joins the stages s and s + 1, the last one the last stage and the first. (The fall-back to broadcasts in pairs
// of ranks after DeepSpeed's runtime.pipe.p2p.)
#include "espalier/parallel/pipeline/stage_links.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "espalier/base/check.hpp"
#include "espalier/comm/collectives.hpp"

namespace espalier {
namespace {

constexpr std::int64_t kChunks = 64;
constexpr std::int64_t kMicroBatches = (std::int64_t{1} << 24) - 1;  // so that every tag fits into 31 bits

Group connect(const World& world, const Group& pipe, std::int64_t link) {
  const std::int64_t after = (link + 1) % pipe.size();
  const std::array stages{std::min(link, after), std::max(link, after)};
  const std::array ranks{pipe.world_rank(stages[0]), pipe.world_rank(stages[1])};
  const RankSet both = RankSet::of(ranks);
  const Group pair = world.make_group(both, fmt::format("stages {} and {}", link, after));
  // Two stages have two links between the same ranks.
  return link == 1 && pipe.size() == 2 ? pair.duplicate(fmt::format("stages 1 and 0, {}", both.to_string())) : pair;
}

}  // namespace

PointToPoint point_to_point_by_name(std::string_view name) {
  for (const PointToPoint how : {PointToPoint::automatic, PointToPoint::send, PointToPoint::broadcast}) {
    if (to_string(how) == name) return how;
  }
  throw ConfigError(fmt::format("point-to-point: there is no '{}'; choose auto, send or broadcast", name));
}

std::string_view to_string(PointToPoint how) {
  switch (how) {
    case PointToPoint::automatic:
      return "auto";
    case PointToPoint::send:
      return "send";
    case PointToPoint::broadcast:
      return "broadcast";
  }
  return "?";
}

std::int64_t wire_tag(bool to_next_stage, const MessageTag& tag) {
  ESPALIER_CHECK_CONFIG(
      tag.chunk >= 0 && tag.chunk < kChunks && tag.micro_batch >= 0 && tag.micro_batch < kMicroBatches,
      "pipeline: a message of chunk {} and micro-batch {}; expected chunks below {} and micro-batches below {}",
      tag.chunk, tag.micro_batch, kChunks, kMicroBatches);
  return (tag.micro_batch * kChunks + tag.chunk) * 2 + (to_next_stage ? 1 : 0);
}

struct StageLinks::State {
  Group pipe;
  Group previous, next;  // of the two ranks of each link; invalid where tensors are sent

  const Group& pair(Neighbour neighbour) const { return neighbour == Neighbour::next ? next : previous; }
  std::int64_t stage(Neighbour neighbour) const {
    return (pipe.rank() + (neighbour == Neighbour::next ? 1 : pipe.size() - 1)) % pipe.size();
  }
  void check_not_alone() const {
    ESPALIER_CHECK_CONFIG(pipe.size() > 1,
                          "pipeline: the only stage has no neighbour to talk to; expected pipe of 2 at least");
  }
};

StageLinks::StageLinks(const World& world, const Group& pipe, PointToPoint how) {
  const bool can_send = pipe.capabilities().point_to_point;
  ESPALIER_CHECK_CONFIG(
      how != PointToPoint::send || can_send,
      "pipeline: send and recv are asked for, but backend {} has no point-to-point operations; choose auto or broadcast",
      to_string(world.backend()));
  auto state = std::make_shared<State>(State{.pipe = pipe, .previous = {}, .next = {}});
  if (pipe.size() > 1 && (how == PointToPoint::broadcast || !can_send)) {
    for (std::int64_t link = 0; link < pipe.size();
         ++link) {  // in this order on all ranks, so that connecting cannot block for ever
      if (link == pipe.rank()) state->next = connect(world, pipe, link);
      if ((link + 1) % pipe.size() == pipe.rank()) state->previous = connect(world, pipe, link);
    }
  }
  state_ = std::move(state);
}

bool StageLinks::by_broadcast() const { return state_->next.valid(); }

Work StageLinks::send(const at::Tensor& tensor, Neighbour to, const MessageTag& tag) const {
  state_->check_not_alone();
  const std::int64_t number = wire_tag(to == Neighbour::next, tag);
  if (!by_broadcast()) return espalier::send(tensor, state_->pipe, state_->stage(to), number);
  const Group& pair = state_->pair(to);
  at::Tensor copy = tensor.detach().clone();
  return broadcast_(copy, pair, pair.rank());
}

Work StageLinks::recv(at::Tensor& tensor, Neighbour from, const MessageTag& tag) const {
  state_->check_not_alone();
  const std::int64_t number = wire_tag(from == Neighbour::previous, tag);
  if (!by_broadcast()) return espalier::recv(tensor, state_->pipe, state_->stage(from), number);
  const Group& pair = state_->pair(from);
  return broadcast_(tensor, pair, 1 - pair.rank());
}

void StageLinks::send_json(std::string_view text, Neighbour to, const MessageTag& tag) const {
  ESPALIER_CHECK_CONFIG(nlohmann::json::accept(text),
                        "pipeline: a message of {} bytes is no JSON; expected a JSON value", text.size());
  const at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  const at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  // What is not sent yet when its Work goes is sent nevertheless.
  static_cast<void>(send(length, to, tag));
  static_cast<void>(send(bytes, to, tag));
}

std::string StageLinks::recv_json(Neighbour from, const MessageTag& tag) const {
  at::Tensor length = at::empty({1}, at::kLong);
  recv(length, from, tag).wait();
  at::Tensor bytes = at::empty({*length.const_data_ptr<std::int64_t>()}, at::kByte);
  recv(bytes, from, tag).wait();
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

}  // namespace espalier
