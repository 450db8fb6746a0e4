// SPDX-License-Identifier: Apache-2.0
// Header: kHeaderElems int64: [number of tensors, length of the description, description ...]; a description that does not
// fit follows as a message of its own. Description of a tensor: dtype, requires gradient, dimensions, sizes.
#include "espalier/parallel/pipeline/message.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "espalier/base/check.hpp"
#include "espalier/comm/collectives.hpp"

namespace espalier::detail {
namespace {

constexpr std::int64_t kHeaderElems = 32;
constexpr std::int64_t kInlineElems = kHeaderElems - 2;

at::Tensor int64_tensor(std::int64_t size) { return at::zeros({size}, at::kLong); }

}  // namespace

void send_tensors(const Tensors& tensors, const Group& group, std::int64_t to, std::int64_t tag, PendingSends& pending) {
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
  pending.add(send(header, group, to, tag));
  if (length > kInlineElems) {
    at::Tensor rest = int64_tensor(length);
    std::ranges::copy(description, rest.mutable_data_ptr<std::int64_t>());
    pending.add(send(rest, group, to, tag));
  }
  for (const at::Tensor& tensor : tensors) pending.add(send(tensor.detach(), group, to, tag));
}

Tensors recv_tensors(const Group& group, std::int64_t from, std::int64_t tag) {
  at::Tensor header = int64_tensor(kHeaderElems);
  recv(header, group, from, tag).wait();
  const auto* at = header.const_data_ptr<std::int64_t>();
  const std::int64_t count = at[0];
  const std::int64_t length = at[1];
  const std::int64_t* description = at + 2;
  at::Tensor rest;
  if (length > kInlineElems) {
    rest = int64_tensor(length);
    recv(rest, group, from, tag).wait();
    description = rest.const_data_ptr<std::int64_t>();
  }
  Tensors tensors;
  std::vector<bool> requires_grad;
  std::vector<Work> works;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto dtype = static_cast<at::ScalarType>(description[0]);
    const std::int64_t dims = description[2];
    tensors.push_back(at::empty(at::IntArrayRef(description + 3, dims), dtype));
    requires_grad.push_back(description[1] != 0);
    description += 3 + dims;
  }
  for (at::Tensor& tensor : tensors) works.push_back(recv(tensor, group, from, tag));
  wait_all(works);
  for (std::int64_t i = 0; i < count; ++i) {
    if (requires_grad[i]) tensors[i].set_requires_grad(true);
  }
  return tensors;
}

}  // namespace espalier::detail
