// SPDX-License-Identifier: Apache-2.0
#include "espalier/parallel/compress/compression_errors.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

std::int64_t round_up(std::int64_t num_elems, std::int64_t multiple) {
  return (num_elems + multiple - 1) / multiple * multiple;
}

void check_length(std::int64_t num_elems, std::int64_t size) {
  ESPALIER_CHECK_CONFIG(num_elems >= 0 && size >= 1,
                        "compressed all-reduce: {} elements over {} ranks; expected at least 0 elements and 1 rank",
                        num_elems, size);
}

void check_tensors(const char* which, const std::vector<at::Tensor>& tensors, std::int64_t length,
                   at::ScalarType dtype) {
  for (std::size_t rank = 0; rank < tensors.size(); ++rank) {
    ESPALIER_CHECK_CONFIG(tensors[rank].numel() == length && tensors[rank].scalar_type() == dtype,
                          "recut: the {} error of rank {} has {} elements of {}; expected {} of {}", which, rank,
                          tensors[rank].numel(), c10::toString(tensors[rank].scalar_type()), length,
                          c10::toString(dtype));
  }
}

// The first `num_elems` of a flat tensor, followed by zeros up to `length`.
at::Tensor padded_to(const at::Tensor& flat, std::int64_t num_elems, std::int64_t length) {
  at::Tensor result = at::zeros({length}, flat.options());
  result.narrow(0, 0, num_elems).copy_(flat.narrow(0, 0, num_elems));
  return result;
}

}  // namespace

std::int64_t compressed_length(std::int64_t num_elems, std::int64_t size) {
  check_length(num_elems, size);
  return round_up(num_elems, 8 * size);
}

std::int64_t deepspeed_compressed_length(std::int64_t num_elems, std::int64_t size) {
  check_length(num_elems, size);
  return round_up(num_elems, size * std::lcm(size, std::int64_t{8}));
}

CompressionErrors recut(const CompressionErrors& errors, std::int64_t num_elems, std::int64_t size,
                        std::int64_t padded_elems) {
  const auto old_size = static_cast<std::int64_t>(errors.worker.size());
  const std::int64_t padded = padded_elems == 0 ? compressed_length(num_elems, size) : padded_elems;
  ESPALIER_CHECK_CONFIG(old_size >= 1 && errors.server.size() == errors.worker.size(),
                        "recut: {} worker errors and {} server errors; expected one of each for every rank, at least 1",
                        errors.worker.size(), errors.server.size());
  ESPALIER_CHECK_CONFIG(
      size >= 1 && padded >= num_elems && padded % (8 * size) == 0,
      "recut: {} elements padded to {} over {} ranks; expected a multiple of {} that is not smaller; leave padded_elems out",
      num_elems, padded, size, 8 * size);
  const std::int64_t old_padded = errors.worker.front().numel();
  ESPALIER_CHECK_CONFIG(
      old_padded >= num_elems && old_padded % (8 * old_size) == 0,
      "recut: worker errors of {} elements from {} ranks; expected a multiple of {} that is not below {}", old_padded,
      old_size, 8 * old_size, num_elems);
  const at::ScalarType dtype = errors.worker.front().scalar_type();
  check_tensors("worker", errors.worker, old_padded, dtype);
  check_tensors("server", errors.server, old_padded / old_size, dtype);
  if (size == old_size && padded == old_padded) return errors;

  at::Tensor sum = at::zeros({old_padded}, at::kDouble);
  for (const at::Tensor& worker : errors.worker) sum.add_(worker.detach());
  const at::Tensor mean = sum.div_(old_size).to(dtype);
  const at::Tensor server = padded_to(at::cat(errors.server).detach(), num_elems, padded);
  CompressionErrors result;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    result.worker.push_back(padded_to(mean, num_elems, padded));
    result.server.push_back(server.narrow(0, rank * (padded / size), padded / size).clone());
  }
  return result;
}

}  // namespace espalier
