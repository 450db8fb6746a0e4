// SPDX-License-Identifier: Apache-2.0
// Memory is passed over once, in blocks that stay in the first-level cache; a mean is never stored, it is expanded from
// the bits block by block.
#include "espalier/parallel/compress/compressed_all_reduce.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
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

// elements <- source + what `last_scale` missed of them; bits <- their signs, those beyond `count` 1. Returns their
// scale.
template <class T>
T compress(const CompressKernels<T>& kernels, const Source<T>& source, T* elements, double last_scale, at::Tensor& bits,
           std::int64_t count) {
  alignas(64) T room[kBlock];
  std::uint8_t* out = bits.mutable_data_ptr<std::uint8_t>();
  std::fill(out + count / kBitsPerByte, out + bits.numel(), std::uint8_t{0xff});
  double sum = 0.0;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    sum += kernels.compress(source.block(begin, n, room), elements + begin, static_cast<T>(last_scale),
                            out + begin / kBitsPerByte, n);
  }
  return count == 0 ? T{0} : static_cast<T>(std::sqrt(sum) / std::sqrt(static_cast<double>(count)));
}

double largest_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return std::numeric_limits<c10::Half>::max();
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::max();
    case at::kFloat:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

}  // namespace

CompressedAllReduce::CompressedAllReduce(const Group& group, std::int64_t num_elems, at::ScalarType dtype,
                                         const CompressionOptions& options)
    : group_(group), num_elems_(num_elems), dtype_(dtype), padding_in_scale_(options.padding_in_scale) {
  const std::int64_t size = group.size();
  ESPALIER_CHECK_CONFIG(dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
                        "compressed all-reduce on group '{}': dtype {}; expected float64, float32, float16 or bfloat16",
                        group.name(), c10::toString(dtype));
  padded_ = options.padded_elems == 0 ? compressed_length(num_elems, size) : options.padded_elems;
  ESPALIER_CHECK_CONFIG(
      padded_ >= num_elems && padded_ % (kBitsPerByte * size) == 0,
      "compressed all-reduce on group '{}': {} elements padded to {}; expected a multiple of 8 bits x {} ranks = {} that is "
      "not smaller, for example {}",
      group.name(), num_elems, padded_, size, kBitsPerByte * size, compressed_length(num_elems, size));
  agree(group, "compressed all-reduce",
        std::vector<std::string>{fmt::format("{} elements of {} padded to {}, padding {} the scale", num_elems,
                                             c10::toString(dtype), padded_, padding_in_scale_ ? "in" : "out of")});
  const std::int64_t chunk = padded_ / size, chunk_bytes = chunk / kBitsPerByte;
  const at::ScalarType state = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto scale_bytes = static_cast<std::int64_t>(c10::elementSize(state));
  const std::int64_t counted = padding_in_scale_ ? padded_ : num_elems_;
  worker_ = {.elements = at::zeros({padded_}, state), .counted = counted};
  server_ = {.elements = at::zeros({chunk}, state),
             .counted = std::clamp<std::int64_t>(counted - group.rank() * chunk, 0, chunk)};
  received_bits_ = at::empty({size, chunk_bytes}, at::kByte);
  packet_ = at::full({scale_bytes + chunk_bytes}, 0xff, at::kByte);
  packets_ = at::empty({size, scale_bytes + chunk_bytes}, at::kByte);
  message_.worker_bits = at::full({size * chunk_bytes}, 0xff, at::kByte);
  message_.server_bits = packet_.narrow(0, scale_bytes, chunk_bytes);
}

at::Tensor CompressedAllReduce::Compressed::error() const {
  at::Tensor error = elements.clone();
  at::Tensor part = error.narrow(0, 0, counted);
  const at::Tensor sent = at::full({}, scale, elements.options());
  part.sub_(at::where(part.ge(0), sent, -sent));
  return error;
}

void CompressedAllReduce::Compressed::set_error(const at::Tensor& error) {
  elements.narrow(0, 0, counted).copy_(error.narrow(0, 0, counted));
  scale = 0.0;
}

void CompressedAllReduce::Compressed::forget() {
  elements.zero_();
  scale = 0.0;
}

void CompressedAllReduce::set_errors(const at::Tensor& worker, const at::Tensor& server) {
  const auto check = [&](const char* which, const at::Tensor& error, const Compressed& mine) {
    ESPALIER_CHECK_CONFIG(error.sizes() == mine.elements.sizes() && error.scalar_type() == mine.elements.scalar_type(),
                          "compressed all-reduce on group '{}': a {} error [{}] of {}; expected [{}] of {}",
                          group_.name(), which, fmt::join(error.sizes(), ","), c10::toString(error.scalar_type()),
                          mine.elements.numel(), c10::toString(mine.elements.scalar_type()));
  };
  check("worker", worker, worker_);
  check("server", server, server_);
  const at::NoGradGuard no_grad;
  worker_.set_error(worker);
  server_.set_error(server);
}

void CompressedAllReduce::check_scales(std::span<const double> scales, double largest, std::string_view what) {
  std::vector<std::string> bad;
  for (std::size_t rank = 0; rank < scales.size(); ++rank) {
    if (!(scales[rank] <= largest)) bad.push_back(fmt::format("rank {} has {}", rank, scales[rank]));
  }
  if (bad.empty()) return;
  worker_.forget();
  server_.forget();
  throw ConfigError(
      fmt::format("compressed all-reduce on group '{}': {}, but {}; all errors were set to zero; skip this step",
                  group_.name(), what, fmt::join(bad, ", ")));
}

void CompressedAllReduce::mean_(at::Tensor& tensor) {
  ESPALIER_CHECK_CONFIG(tensor.numel() == num_elems_ && tensor.scalar_type() == dtype_,
                        "compressed all-reduce on group '{}': a tensor of {} elements of {}; it was made for {} of {}",
                        group_.name(), tensor.numel(), c10::toString(tensor.scalar_type()), num_elems_,
                        c10::toString(dtype_));
  if (num_elems_ == 0) return;
  const at::NoGradGuard no_grad;
  dtype_ == at::kDouble ? mean_of<double>(tensor) : mean_of<float>(tensor);
}

template <class T>
void CompressedAllReduce::mean_of(at::Tensor& tensor) {
  const std::int64_t size = group_.size(), chunk = padded_ / size;
  const auto kernels = detail::compress_kernels<T>(detail::KernelKind::fastest);
  const at::TensorOptions state = worker_.elements.options();
  at::Tensor flat = tensor.detach().reshape({-1}).to(state.dtype()).contiguous();
  if (worker_.counted > num_elems_) flat = at::constant_pad_nd(flat, {0, padded_ - num_elems_});

  const Values<T> values(flat.const_data_ptr<T>());
  const T worker_scale = compress<T>(kernels, values, worker_.elements.mutable_data_ptr<T>(), worker_.scale,
                                     message_.worker_bits, worker_.counted);
  worker_.scale = message_.worker_scale = worker_scale;
  at::Tensor all_scales = at::empty({size}, state);
  all_gather_into(all_scales, at::full({1}, worker_scale, state), group_).wait();
  bytes_sent_ += (size - 1) * static_cast<std::int64_t>(sizeof(T));
  const T* const worker_scales = all_scales.const_data_ptr<T>();
  check_scales(std::vector<double>(worker_scales, worker_scales + size), std::numeric_limits<T>::max(),
               "scales must be finite");
  all_to_all_into(received_bits_, message_.worker_bits, group_).wait();
  bytes_sent_ += (size - 1) * chunk / kBitsPerByte;

  MeanOfBits<T> mean;
  mean.kernels = kernels;
  for (std::int64_t member = 0; member < size; ++member) {
    mean.bits.push_back(received_bits_.const_data_ptr<std::uint8_t>() + member * (chunk / kBitsPerByte));
    mean.scales.push_back(worker_scales[member] / static_cast<T>(size));
  }
  const T server_scale = compress<T>(kernels, mean, server_.elements.mutable_data_ptr<T>(), server_.scale,
                                     message_.server_bits, server_.counted);
  server_.scale = message_.server_scale = server_scale;
  std::memcpy(packet_.mutable_data_ptr<std::uint8_t>(), &server_scale, sizeof(T));
  all_gather_into(packets_, packet_, group_).wait();
  bytes_sent_ += (size - 1) * packet_.numel();

  const std::uint8_t* packets = packets_.const_data_ptr<std::uint8_t>();
  std::vector<T> scales(static_cast<std::size_t>(size));
  for (std::int64_t member = 0; member < size; ++member) {
    std::memcpy(&scales[static_cast<std::size_t>(member)], packets + member * packet_.numel(), sizeof(T));
  }
  check_scales(std::vector<double>(scales.begin(), scales.end()), largest_of(dtype_),
               fmt::format("scales of the mean must be finite in {}", c10::toString(dtype_)));
  // The tensor itself where it can be written directly.
  const bool direct = tensor.is_contiguous() && tensor.scalar_type() == state.dtype();
  at::Tensor result = direct ? tensor.detach() : at::empty(tensor.sizes(), state);
  T* out = result.mutable_data_ptr<T>();
  for (std::int64_t member = 0; member * chunk < num_elems_; ++member) {
    const std::vector<const std::uint8_t*> bits{packets + member * packet_.numel() + sizeof(T)};
    const std::vector<T> scale{scales[static_cast<std::size_t>(member)]};
    kernels.expand_sum(bits, scale, out + member * chunk, std::min(chunk, num_elems_ - member * chunk));
  }
  if (!direct) tensor.detach().copy_(result);
}

}  // namespace espalier
