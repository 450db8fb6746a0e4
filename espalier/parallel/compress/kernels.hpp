// SPDX-License-Identifier: Apache-2.0
// Private: the arithmetic of 1-bit compression on plain memory. A bit is 1 where the element is at or above zero (-0
// is); the first element of a byte is its highest bit.
#pragma once

#include <cstdint>
#include <span>

namespace espalier::detail {

inline constexpr std::int64_t kBitsPerByte = 8;

// T is float or double. What +scale or -scale misses of an element is its *error*, element - (element >= 0 ? scale :
// -scale). It is not stored: the element is, and its error is formed when it is read next, so that memory is passed
// over once.
template <class T>
struct CompressKernels {
  // elements[i] <- values[i] + the error of elements[i] under `scale`; bits <- their signs, unused ones of the last
  // byte 1. Returns the sum of their squares in float64: 16 interleaved sums, added in order at the end.
  double (*compress)(const T* values, T* elements, T scale, std::uint8_t* bits, std::int64_t count);
  // values <- the sum over sources of +scale or -scale, in their order; at least one source.
  void (*expand_sum)(std::span<const std::uint8_t* const> bits, std::span<const T> scales, T* values,
                     std::int64_t count);
};

// reference: an element at a time, as the definition reads. portable and fastest (AVX2 where the processor has it) give
// the same bits.
enum class KernelKind { reference, portable, fastest };

template <class T>
CompressKernels<T> compress_kernels(KernelKind kind);

}  // namespace espalier::detail
