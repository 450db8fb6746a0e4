// SPDX-License-Identifier: Apache-2.0
// Metadata may come from a peer or a file, so from_meta() believes none of it: every number is checked before it is
// used, the lengths first. That the cuts must be the uniform ones bounds the whole by the part, which is really there.
#include "espalier/sharding/partitioned_tensor.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "espalier/autograd/gather_parts.hpp"
#include "espalier/base/check.hpp"
#include "espalier/plan/partition/partition.hpp"

namespace espalier {
namespace {

constexpr const char* kWhere = "partitioned tensor";
constexpr std::int64_t kMaxDimensions = 64;
constexpr std::int64_t kVersionedHead = 4;  // numbers in front of the plain form

using Numbers = std::span<const std::int64_t>;

at::Tensor to_tensor(const std::vector<std::int64_t>& numbers) {
  const at::Tensor tensor = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), tensor.mutable_data_ptr<std::int64_t>());
  return tensor;
}

void check_usable(const at::Tensor& tensor, const char* role, const Group& group) {
  ESPALIER_CHECK_CONFIG(group.valid(),
                        "{}: the group is empty (a default Group); make one with World::make_group or a Mesh", kWhere);
  ESPALIER_CHECK_CONFIG(tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu(),
                        "{}: the {} is undefined, not dense or not on the CPU; expected a dense CPU tensor", kWhere,
                        role);
}

// The product of the sizes. Those of 0 count as 1 in what must be representable, because strides do.
std::int64_t checked_elements(Numbers sizes, std::int64_t bytes_each) {
  std::int64_t elements = 1;
  std::int64_t bytes = bytes_each;
  for (const std::int64_t size : sizes) {
    ESPALIER_CHECK_CONFIG(size >= 0, "{}: the metadata have the shape [{}]; expected sizes from 0", kWhere,
                          fmt::join(sizes, ","));
    ESPALIER_CHECK_CONFIG(
        !__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes),
        "{}: the shape [{}] of the metadata, of {} bytes each, is beyond 64 bits; expected a smaller one", kWhere,
        fmt::join(sizes, ","), bytes_each);
    elements *= size;
  }
  return elements;
}

// Strips [kMagic, kVersion, dtype, requires_grad]; whether a gradient is required.
bool take_head(Numbers& numbers, const at::Tensor& local) {
  if (numbers.empty() || numbers[0] != PartitionedTensor::kMagic) return false;
  ESPALIER_CHECK_CONFIG(numbers.size() > static_cast<std::size_t>(kVersionedHead),
                        "{}: {} numbers of versioned metadata; expected more than {}", kWhere, numbers.size(),
                        kVersionedHead);
  ESPALIER_CHECK_CONFIG(numbers[1] == PartitionedTensor::kVersion,
                        "{}: the metadata are of version {}; this program reads version {}", kWhere, numbers[1],
                        PartitionedTensor::kVersion);
  const auto dtype = static_cast<std::int64_t>(local.scalar_type());
  ESPALIER_CHECK_CONFIG(numbers[2] == dtype,
                        "{}: the metadata are of dtype {}, the part is of dtype {} ({}); expected the same", kWhere,
                        numbers[2], dtype, c10::toString(local.scalar_type()));
  ESPALIER_CHECK_CONFIG(
      numbers[3] == 0 || (numbers[3] == 1 && at::isFloatingType(local.scalar_type())),
      "{}: requires_grad is {} in the metadata of a part of dtype {}; expected 0, or 1 with a floating dtype", kWhere,
      numbers[3], c10::toString(local.scalar_type()));
  const bool requires_grad = numbers[3] == 1;
  numbers = numbers.subspan(kVersionedHead);
  return requires_grad;
}

struct Meta {
  Numbers shape;
  std::int64_t parts;
  std::int64_t rank;
  Numbers cuts;
};

Meta split(Numbers numbers) {
  const auto count = static_cast<std::int64_t>(numbers.size());
  ESPALIER_CHECK_CONFIG(count >= 1, "{}: the metadata are empty; expected at least 5 numbers", kWhere);
  const std::int64_t dimensions = numbers[0];
  ESPALIER_CHECK_CONFIG(dimensions >= 0 && dimensions <= kMaxDimensions,
                        "{}: the metadata say {} dimensions; expected 0 to {}", kWhere, dimensions, kMaxDimensions);
  ESPALIER_CHECK_CONFIG(count >= dimensions + 5, "{}: {} numbers of metadata for {} dimensions; expected at least {}",
                        kWhere, count, dimensions, dimensions + 5);
  const std::int64_t parts = numbers[static_cast<std::size_t>(dimensions + 1)];
  ESPALIER_CHECK_CONFIG(parts == count - dimensions - 4,
                        "{}: {} parts in {} numbers of metadata for {} dimensions; expected {} parts", kWhere, parts,
                        count, dimensions, count - dimensions - 4);
  return {numbers.subspan(1, static_cast<std::size_t>(dimensions)), parts,
          numbers[static_cast<std::size_t>(dimensions + 2)], numbers.subspan(static_cast<std::size_t>(dimensions + 3))};
}

void check_cuts(Numbers cuts, std::int64_t elements, std::int64_t parts) {
  const std::vector<std::int64_t> uniform = partition_uniform(elements, parts);
  ESPALIER_CHECK_CONFIG(std::equal(cuts.begin(), cuts.end(), uniform.begin(), uniform.end()),
                        "{}: the metadata cut {} elements at [{}]; expected [{}]", kWhere, elements,
                        fmt::join(cuts, ","), fmt::join(uniform, ","));
}

}  // namespace

PartitionedTensor::PartitionedTensor(const at::Tensor& tensor, const Group& group) : group_(group) {
  check_usable(tensor, "tensor", group);
  shape_ = tensor.sizes().vec();
  cuts_ = partition_uniform(tensor.numel(), group.size());
  const auto part = static_cast<std::size_t>(group.rank());
  local_ = tensor.reshape({-1}).narrow(0, cuts_[part], cuts_[part + 1] - cuts_[part]).clone();
}

at::Tensor PartitionedTensor::full() const { return gather_parts(local_, cuts_, group_).view(shape_); }

at::Tensor PartitionedTensor::to_meta() const {
  std::vector<std::int64_t> numbers{static_cast<std::int64_t>(shape_.size())};
  numbers.insert(numbers.end(), shape_.begin(), shape_.end());
  numbers.push_back(group_.size());
  numbers.push_back(group_.rank());
  numbers.insert(numbers.end(), cuts_.begin(), cuts_.end());
  return to_tensor(numbers);
}

at::Tensor PartitionedTensor::to_versioned_meta() const {
  const at::Tensor plain = to_meta();
  std::vector<std::int64_t> numbers{kMagic, kVersion, static_cast<std::int64_t>(local_.scalar_type()),
                                    local_.requires_grad() ? 1 : 0};
  const std::int64_t* first = plain.const_data_ptr<std::int64_t>();
  numbers.insert(numbers.end(), first, first + plain.numel());
  return to_tensor(numbers);
}

PartitionedTensor PartitionedTensor::from_meta(const at::Tensor& meta, const at::Tensor& local, const Group& group) {
  check_usable(meta, "tensor of metadata", group);
  check_usable(local, "part", group);
  ESPALIER_CHECK_CONFIG(meta.scalar_type() == at::kLong && meta.dim() == 1,
                        "{}: the metadata are a {}-dimensional {} tensor; expected one dimension of int64", kWhere,
                        meta.dim(), c10::toString(meta.scalar_type()));
  const at::Tensor contiguous = meta.contiguous();
  Numbers numbers(contiguous.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(contiguous.numel()));
  const bool requires_grad = take_head(numbers, local);
  const Meta read = split(numbers);
  ESPALIER_CHECK_CONFIG(
      read.parts == group.size() && read.rank == group.rank(),
      "{}: the metadata are of part {} of {}, but this is rank {} of group '{}' of {}; expected its own", kWhere,
      read.rank, read.parts, group.rank(), group.name(), group.size());
  check_cuts(read.cuts, checked_elements(read.shape, static_cast<std::int64_t>(local.element_size())), read.parts);
  const auto part = static_cast<std::size_t>(read.rank);
  ESPALIER_CHECK_CONFIG(local.numel() == read.cuts[part + 1] - read.cuts[part],
                        "{}: part {} has {} elements in the metadata, but {} are here; expected the same", kWhere,
                        read.rank, read.cuts[part + 1] - read.cuts[part], local.numel());
  PartitionedTensor result;
  result.shape_.assign(read.shape.begin(), read.shape.end());
  result.cuts_.assign(read.cuts.begin(), read.cuts.end());
  result.local_ = local.reshape({-1});
  if (requires_grad && !local.requires_grad()) result.local_ = result.local_.detach().set_requires_grad(true);
  result.group_ = group;
  return result;
}

}  // namespace espalier
