// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/player.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "espalier/comm/collectives.hpp"
#include "espalier/plan/seed.hpp"
#include "tests/chaos/values.hpp"

namespace espalier::chaos {
namespace {

constexpr std::size_t kMostPending = 8;

// Where a step's tensors lie. Strided: every second element of a longer one.
struct Memory {
  bool strided;
  const World* buffers_of;  // null: ordinary memory
};

at::Tensor filled(const std::vector<char>& bytes, at::ScalarType dtype, const Memory& memory) {
  const auto count = static_cast<std::int64_t>(bytes.size() / c10::elementSize(dtype));
  at::Tensor tensor =
      memory.buffers_of != nullptr ? memory.buffers_of->host_buffer({count}, dtype) : at::empty({count}, dtype);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return memory.strided ? at::empty({count, 2}, dtype).select(1, 0).copy_(tensor) : tensor;
}

// Something that no result is equal to.
at::Tensor unwritten(std::int64_t count, at::ScalarType dtype, const Memory& memory) {
  const std::vector<char> bytes(static_cast<std::size_t>(count) * c10::elementSize(dtype),
                                dtype == at::kBool ? 0 : 0x55);
  return filled(bytes, dtype, memory);
}

std::int64_t total(const std::vector<Part>& parts) {
  std::int64_t elems = 0;
  for (const Part& part : parts) elems += part.count;
  return elems;
}

}  // namespace

Player::Player(const Program& program, const World& world, std::chrono::milliseconds patience)
    : program_(program),
      world_(world),
      patience_(patience),
      random_(derive_seed(program.seed, "chaos player", {world.rank()})),
      groups_(program.groups.size()) {}

Group& Player::group(std::size_t index) {
  Group& group = groups_[index];
  if (group.valid()) return group;
  const Members& members = program_.groups[index];
  const std::string name = fmt::format("group {}", index);
  group = world_.make_group(RankSet::of(members.ranks), name);
  if (!members.duplicate.empty()) group = group.duplicate(members.duplicate);
  return group;
}

void Player::play(const Step& step, std::size_t number) {
  if (takes_part(program_, step, world_.rank())) {
    ++num_played_;
    begin(step);
  }
  while (!pending_.empty() && (pending_.size() > kMostPending || random_.chance(0.4))) {
    // Only what all others can bring to an end: its last half has been begun.
    std::vector<std::size_t> settled;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      if (pending_[i].step.settled_by <= number) settled.push_back(i);
    }
    if (settled.empty()) return;
    wait(random_.pick(settled));
  }
}

void Player::finish() {
  while (!pending_.empty()) wait(static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(pending_.size()))));
}

void Player::begin(const Step& step) {
  const Group& members = group(step.group);
  const std::int64_t size = members.size();
  const std::int64_t me = members.rank();
  const std::vector<Part> in = inputs(step, size, me);
  const std::vector<Part> out = outputs(step, size, me);
  const Memory memory{step.strided, random_.chance(0.4) ? &world_ : nullptr};
  at::Tensor input = filled(bytes_of(in, step.dtype), step.dtype, memory);
  Pending pending{.step = step, .work = {}, .outputs = {}};
  const auto output = [&](std::int64_t count) -> at::Tensor& {
    return pending.outputs.emplace_back(unwritten(count, step.dtype, memory));
  };
  switch (step.kind) {
    case Kind::all_reduce:
      pending.work = all_reduce_(input, members, step.reduce);
      pending.outputs.push_back(input);
      break;
    case Kind::reduce:
      pending.work = reduce_(input, members, step.root, step.reduce);
      pending.outputs.push_back(input);
      break;
    case Kind::broadcast:
      if (me != step.root) input = unwritten(step.count, step.dtype, memory);
      pending.work = broadcast_(input, members, step.root);
      pending.outputs.push_back(input);
      break;
    case Kind::all_gather:
      pending.work = all_gather_into(output(total(out)), input, members);
      break;
    case Kind::all_gather_v:
      for (const Part& part : out) output(part.count);
      pending.work = all_gather_v(pending.outputs, input, members);
      break;
    case Kind::gather: {
      at::Tensor unused;
      pending.work = gather_into(me == step.root ? output(total(out)) : unused, input, members, step.root);
      break;
    }
    case Kind::scatter:
      pending.work = scatter_into(output(total(out)), input, members, step.root);
      break;
    case Kind::reduce_scatter:
      pending.work = reduce_scatter_into(output(total(out)), input, members, step.reduce);
      break;
    case Kind::all_to_all:
      pending.work = all_to_all_into(output(total(out)), input, members);
      break;
    case Kind::all_to_all_v:
      pending.work = all_to_all_into(output(total(out)), input, members, counts(out), counts(in));
      break;
    case Kind::barrier:
      pending.work = barrier(members);
      break;
    case Kind::send:
      pending.work = send(input, members, step.receiver, step.tag);
      if (random_.chance(0.5)) std::memset(input.mutable_data_ptr(), 0x33, input.is_contiguous() ? input.nbytes() : 0);
      break;
    case Kind::recv:
      pending.work = recv(output(total(out)), members, step.root, step.tag);
      break;
    case Kind::save:
      throw std::logic_error("chaos: a player does not save");
  }
  if (is_collective(step.kind) && random_.chance(0.03)) return;  // dropped: finishes by itself, in later calls
  pending_.push_back(std::move(pending));
}

void Player::wait(std::size_t which) {
  std::swap(pending_[which], pending_.back());
  Pending pending = std::move(pending_.back());
  pending_.pop_back();
  if (random_.chance(0.2)) {
    for (int look = 0; look < 20 && !pending.work.done(); ++look) std::this_thread::yield();
  }
  pending.work.wait(patience_);
  const Members& members = program_.groups[pending.step.group];
  const auto me = std::ranges::find(members.ranks, world_.rank()) - members.ranks.begin();
  const std::vector<Part> expected = outputs(pending.step, static_cast<std::int64_t>(members.ranks.size()), me);
  const std::vector<char> bytes = bytes_of(expected, pending.step.dtype);
  std::size_t at = 0;
  for (const at::Tensor& output : pending.outputs) {
    const at::Tensor found = output.contiguous();
    const char* data = static_cast<const char*>(found.const_data_ptr());
    const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(at + found.nbytes());
    const auto differs = std::mismatch(bytes.begin() + static_cast<std::ptrdiff_t>(at), end, data).first;
    if (differs != end) {
      throw WrongResult(
          fmt::format("{} on rank {}: element {} of {} is wrong", describe(program_, pending.step), world_.rank(),
                      (differs - bytes.begin()) / static_cast<std::ptrdiff_t>(c10::elementSize(pending.step.dtype)),
                      total(expected)));
    }
    at += found.nbytes();
  }
}

}  // namespace espalier::chaos
