// SPDX-License-Identifier: Apache-2.0
// Header: kHeaderElems int64: [number of tensors, length of the description, description ...]; a description that does
// not fit follows as a message of its own. Description of a tensor: dtype, requires gradient, dimensions, sizes.
#include "espalier/parallel/pipeline/message.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "espalier/autograd/gather_parts.hpp"
#include "espalier/plan/partition/partition.hpp"
#include "espalier/sharding/partitioned_tensor.hpp"

namespace espalier::detail {
namespace {

constexpr std::int64_t kHeaderElems = 32;
constexpr std::int64_t kInlineElems = kHeaderElems - 2;

at::Tensor int64_tensor(std::int64_t size) { return at::empty({size}, at::kLong); }

}  // namespace

void StageMessages::send_described(const Tensors& tensors, Neighbour to, const MessageTag& tag) {
  std::vector<std::int64_t> description;
  for (const at::Tensor& tensor : tensors) {
    description.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
    description.push_back(tensor.requires_grad());
    description.push_back(tensor.dim());
    description.insert(description.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  const auto length = std::ssize(description);
  at::Tensor header = int64_tensor(kHeaderElems);
  auto* at = header.mutable_data_ptr<std::int64_t>();
  at[0] = std::ssize(tensors);
  at[1] = length;
  if (length <= kInlineElems) std::ranges::copy(description, at + 2);
  under_way_.push_back(links_.send(header, to, tag));
  if (length > kInlineElems) {
    at::Tensor rest = int64_tensor(length);
    std::ranges::copy(description, rest.mutable_data_ptr<std::int64_t>());
    under_way_.push_back(links_.send(rest, to, tag));
  }
  for (const at::Tensor& tensor : tensors) send(tensor.detach(), to, tag);
}

Tensors StageMessages::recv_described(Neighbour from, const MessageTag& tag) {
  at::Tensor header = int64_tensor(kHeaderElems);
  links_.recv(header, from, tag).wait();
  const auto* at = header.const_data_ptr<std::int64_t>();
  const std::int64_t count = at[0];
  const std::int64_t length = at[1];
  const std::int64_t* description = at + 2;
  at::Tensor rest;
  if (length > kInlineElems) {
    rest = int64_tensor(length);
    links_.recv(rest, from, tag).wait();
    description = rest.const_data_ptr<std::int64_t>();
  }
  Tensors tensors;
  std::vector<bool> requires_grad;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto dtype = static_cast<at::ScalarType>(description[0]);
    const std::int64_t dims = description[2];
    tensors.push_back(at::empty(at::IntArrayRef(description + 3, dims), dtype));
    requires_grad.push_back(description[1] != 0);
    description += 3 + dims;
  }
  recv(tensors, from, tag);
  for (std::int64_t i = 0; i < count; ++i) {
    if (requires_grad[i]) tensors[i].set_requires_grad(true);
  }
  return tensors;
}

void StageMessages::send(const at::Tensor& tensor, Neighbour to, const MessageTag& tag) {
  drop_finished();
  under_way_.push_back(links_.send(in_parts() ? PartitionedTensor(tensor, cut_over_).local_data() : tensor, to, tag));
}

void StageMessages::recv(std::span<at::Tensor> into, Neighbour from, const MessageTag& tag) const {
  std::vector<Work> works;
  if (!in_parts()) {
    for (at::Tensor& tensor : into) works.push_back(links_.recv(tensor, from, tag));
    return wait_all(works);
  }
  Tensors parts;
  std::vector<std::vector<std::int64_t>> cuts;
  for (const at::Tensor& tensor : into) {
    const auto mine = static_cast<std::size_t>(cut_over_.rank());
    cuts.push_back(partition_uniform(tensor.numel(), cut_over_.size()));
    parts.push_back(at::empty({cuts.back()[mine + 1] - cuts.back()[mine]}, tensor.scalar_type()));
  }
  for (at::Tensor& part : parts) works.push_back(links_.recv(part, from, tag));
  wait_all(works);
  for (std::size_t i = 0; i < into.size(); ++i)
    into[i] = gather_parts(parts[i], cuts[i], cut_over_).view(into[i].sizes());
}

void StageMessages::wait() {
  wait_all(under_way_);
  under_way_.clear();
}

void StageMessages::drop_finished() {
  std::erase_if(under_way_, [](Work& work) { return work.done(); });
}

}  // namespace espalier::detail
