// SPDX-License-Identifier: Apache-2.0
// Memory is passed over in blocks that stay in the first-level cache, once for the norm and once for bits and errors; a mean
// is never stored, it is expanded from the bits again in both passes. Errors change only after all scales are known to be
// finite everywhere.
#include "espalier/parallel/compress/compressed_all_reduce.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/parallel/compress/kernels.hpp"

namespace espalier {
namespace {

using detail::CompressKernels;
using detail::kBitsPerByte;

constexpr std::int64_t kBlock = 2048;  // elements

template <class T>
struct Source {
  // Elements [begin, begin + count) of what is compressed, without its errors; `room` holds kBlock elements.
  virtual const T* block(std::int64_t begin, std::int64_t count, T* room) const = 0;

 protected:
  ~Source() = default;
};

template <class T>
struct Values final : Source<T> {
  explicit Values(const T* values) : values(values) {}
  const T* block(std::int64_t begin, std::int64_t, T*) const override { return values + begin; }
  const T* values;
};

// The mean of what the members' bits stand for.
template <class T>
struct MeanOfBits final : Source<T> {
  const T* block(std::int64_t begin, std::int64_t count, T* room) const override {
    std::vector<const std::uint8_t*> at(bits);
    for (const std::uint8_t*& one : at) one += begin / kBitsPerByte;
    kernels.expand_sum(at, scales, room, count);
    return room;
  }
  CompressKernels<T> kernels;
  std::vector<const std::uint8_t*> bits;
  std::vector<T> scales;  // divided by their number
};

template <class T>
T scale_of(const CompressKernels<T>& kernels, const Source<T>& source, const T* errors, std::int64_t count) {
  alignas(64) T room[kBlock];
  double sum = 0.0;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    sum += kernels.sum_of_squares(source.block(begin, n, room), errors + begin, n);
  }
  return count == 0 ? T{0} : static_cast<T>(std::sqrt(sum) / std::sqrt(static_cast<double>(count)));
}

// Bits beyond `count` are 1.
template <class T>
void compress(const CompressKernels<T>& kernels, const Source<T>& source, T* errors, T scale, at::Tensor& bits, std::int64_t count) {
  alignas(64) T room[kBlock];
  std::uint8_t* out = bits.mutable_data_ptr<std::uint8_t>();
  std::fill(out + count / kBitsPerByte, out + bits.numel(), std::uint8_t{0xff});
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    kernels.compress(source.block(begin, n, room), errors + begin, scale, out + begin / kBitsPerByte, n);
  }
}

// "" if all are finite.
template <class T>
std::string not_finite(const std::vector<T>& scales, double largest) {
  std::string text;
  for (std::size_t rank = 0; rank < scales.size(); ++rank) {
    if (!(static_cast<double>(scales[rank]) <= largest)) text += fmt::format("{}rank {} has {}", text.empty() ? "" : ", ", rank, scales[rank]);
  }
  return text;
}

double largest_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf: return std::numeric_limits<c10::Half>::max();
    case at::kBFloat16: return std::numeric_limits<c10::BFloat16>::max();
    case at::kFloat: return std::numeric_limits<float>::max();
    default: return std::numeric_limits<double>::max();
  }
}

}  // namespace

CompressedAllReduce::CompressedAllReduce(const Group& group, std::int64_t num_elems, at::ScalarType dtype, const CompressionOptions& options)
    : group_(group), num_elems_(num_elems), dtype_(dtype), padding_in_scale_(options.padding_in_scale) {
  const std::int64_t size = group.size();
  ESPALIER_CHECK_CONFIG(dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
                        "compressed all-reduce on group '{}': dtype {}; expected float64, float32, float16 or bfloat16", group.name(),
                        c10::toString(dtype));
  padded_ = options.padded_elems == 0 ? compressed_length(num_elems, size) : options.padded_elems;
  ESPALIER_CHECK_CONFIG(padded_ >= num_elems && padded_ % (kBitsPerByte * size) == 0,
                        "compressed all-reduce on group '{}': {} elements padded to {}; expected a multiple of 8 bits x {} ranks = {} that is "
                        "not smaller, for example {}",
                        group.name(), num_elems, padded_, size, kBitsPerByte * size, compressed_length(num_elems, size));
  agree(group, "compressed all-reduce",
        std::vector<std::string>{fmt::format("{} elements of {} padded to {}, padding {} the scale", num_elems, c10::toString(dtype), padded_,
                                             padding_in_scale_ ? "in" : "out of")});
  const std::int64_t chunk_bytes = padded_ / size / kBitsPerByte;
  const at::ScalarType state = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto scale_bytes = static_cast<std::int64_t>(c10::elementSize(state));
  worker_error_ = at::zeros({padded_}, state);
  server_error_ = at::zeros({padded_ / size}, state);
  received_bits_ = at::empty({size, chunk_bytes}, at::kByte);
  packet_ = at::empty({scale_bytes + chunk_bytes}, at::kByte);
  packets_ = at::empty({size, scale_bytes + chunk_bytes}, at::kByte);
  message_.worker_bits = at::empty({size * chunk_bytes}, at::kByte);
  message_.server_bits = packet_.narrow(0, scale_bytes, chunk_bytes);
}

void CompressedAllReduce::mean_(at::Tensor& tensor) {
  ESPALIER_CHECK_CONFIG(tensor.numel() == num_elems_ && tensor.scalar_type() == dtype_,
                        "compressed all-reduce on group '{}': a tensor of {} elements of {}; it was made for {} of {}", group_.name(),
                        tensor.numel(), c10::toString(tensor.scalar_type()), num_elems_, c10::toString(dtype_));
  if (num_elems_ == 0) return;
  const at::NoGradGuard no_grad;
  dtype_ == at::kDouble ? mean_of<double>(tensor) : mean_of<float>(tensor);
}

template <class T>
void CompressedAllReduce::mean_of(at::Tensor& tensor) {
  const std::int64_t size = group_.size(), rank = group_.rank(), chunk = padded_ / size;
  const std::int64_t counted = padding_in_scale_ ? padded_ : num_elems_;
  const std::int64_t counted_of_chunk = std::clamp<std::int64_t>(counted - rank * chunk, 0, chunk);
  const auto kernels = detail::compress_kernels<T>(detail::KernelKind::fastest);
  at::Tensor flat = tensor.detach().reshape({-1}).to(worker_error_.scalar_type()).contiguous();
  if (counted > num_elems_) flat = at::constant_pad_nd(flat, {0, padded_ - num_elems_});

  const Values<T> values(flat.const_data_ptr<T>());
  T* worker_error = worker_error_.mutable_data_ptr<T>();
  const T worker_scale = scale_of<T>(kernels, values, worker_error, counted);
  std::vector<T> scales(static_cast<std::size_t>(size));
  at::Tensor all_scales = at::empty({size}, worker_error_.options());
  all_gather_into(all_scales, at::empty({1}, worker_error_.options()).fill_(worker_scale), group_).wait();
  std::copy_n(all_scales.const_data_ptr<T>(), size, scales.begin());
  bytes_sent_ += (size - 1) * static_cast<std::int64_t>(sizeof(T));
  const std::string worker_trouble = not_finite(scales, std::numeric_limits<T>::max());
  ESPALIER_CHECK_CONFIG(worker_trouble.empty(),
                        "compressed all-reduce on group '{}': scales must be finite, but {}; nothing was changed; skip this step", group_.name(),
                        worker_trouble);
  compress<T>(kernels, values, worker_error, worker_scale, message_.worker_bits, counted);
  message_.worker_scale = worker_scale;
  all_to_all_into(received_bits_, message_.worker_bits, group_).wait();
  bytes_sent_ += (size - 1) * chunk / kBitsPerByte;

  MeanOfBits<T> mean;
  mean.kernels = kernels;
  for (std::int64_t member = 0; member < size; ++member) {
    mean.bits.push_back(received_bits_.const_data_ptr<std::uint8_t>() + member * (chunk / kBitsPerByte));
    mean.scales.push_back(scales[static_cast<std::size_t>(member)] / static_cast<T>(size));
  }
  T* server_error = server_error_.mutable_data_ptr<T>();
  const T server_scale = scale_of<T>(kernels, mean, server_error, counted_of_chunk);
  compress<T>(kernels, mean, server_error, server_scale, message_.server_bits, counted_of_chunk);
  message_.server_scale = server_scale;
  std::memcpy(packet_.mutable_data_ptr<std::uint8_t>(), &server_scale, sizeof(T));
  all_gather_into(packets_, packet_, group_).wait();
  bytes_sent_ += (size - 1) * packet_.numel();

  const std::uint8_t* packets = packets_.const_data_ptr<std::uint8_t>();
  for (std::int64_t member = 0; member < size; ++member) {
    std::memcpy(&scales[static_cast<std::size_t>(member)], packets + member * packet_.numel(), sizeof(T));
  }
  const std::string server_trouble = not_finite(scales, largest_of(dtype_));
  if (!server_trouble.empty()) {
    worker_error_.zero_();
    server_error_.zero_();
  }
  ESPALIER_CHECK_CONFIG(server_trouble.empty(),
                        "compressed all-reduce on group '{}': scales of the mean must be finite in {}, but {}; all errors were set to zero; "
                        "skip this step",
                        group_.name(), c10::toString(dtype_), server_trouble);
  // The tensor itself where it can be written directly.
  const bool direct = tensor.is_contiguous() && tensor.scalar_type() == worker_error_.scalar_type();
  at::Tensor result = direct ? tensor.detach() : at::empty(tensor.sizes(), worker_error_.options());
  T* out = result.mutable_data_ptr<T>();
  for (std::int64_t member = 0; member * chunk < num_elems_; ++member) {
    const std::vector<const std::uint8_t*> bits{packets + member * packet_.numel() + sizeof(T)};
    const std::vector<T> scale{scales[static_cast<std::size_t>(member)]};
    kernels.expand_sum(bits, scale, out + member * chunk, std::min(chunk, num_elems_ - member * chunk));
  }
  if (!direct) tensor.detach().copy_(result);
}

}  // namespace espalier
