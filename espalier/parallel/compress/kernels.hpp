// SPDX-License-Identifier: Apache-2.0
// Private: the arithmetic of 1-bit compression on plain memory. A bit is 1 where the element is at or above zero (-0 is);
// the first element of a byte is its highest bit.
#pragma once

#include <cstdint>
#include <span>

namespace espalier::detail {

inline constexpr std::int64_t kBitsPerByte = 8;

// T is float or double. Elements are values[i] + errors[i], rounded to T.
template <class T>
struct CompressKernels {
  // The sum of their squares in float64: 16 interleaved sums, added in order at the end.
  double (*sum_of_squares)(const T* values, const T* errors, std::int64_t count);
  // bits <- their signs; errors <- what (+scale or -scale) misses of each. Unused bits of the last byte are 1.
  void (*compress)(const T* values, T* errors, T scale, std::uint8_t* bits, std::int64_t count);
  // values <- the sum over sources of +scale or -scale, in their order; at least one source.
  void (*expand_sum)(std::span<const std::uint8_t* const> bits, std::span<const T> scales, T* values, std::int64_t count);
};

// reference: an element at a time, as the definition reads. portable and fastest (AVX2 where the processor has it) give
// the same bits.
enum class KernelKind { reference, portable, fastest };

template <class T>
CompressKernels<T> compress_kernels(KernelKind kind);

}  // namespace espalier::detail
