// SPDX-License-Identifier: Apache-2.0
// The loops are plain and shaped for the compiler's vectoriser: 16 sums side by side, signs as bytes of 0 or 1 that one
// multiplication gathers into a byte, bytes spread through a table of sign masks. On x86 they are compiled a second
// time for AVX2. Nothing here may be contracted into fused multiply-adds: all versions must give the same bits.
#include "espalier/parallel/compress/kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#define ESPALIER_INLINE [[gnu::always_inline]] inline

namespace espalier::detail {
namespace {

constexpr std::int64_t kLanes = 16;

double sum_in_order(const double (&lanes)[kLanes]) {
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// ---- reference ----

template <class T>
double reference_compress(const T* values, T* elements, T scale, std::uint8_t* bits, std::int64_t count) {
  std::fill_n(bits, (count + kBitsPerByte - 1) / kBitsPerByte, std::uint8_t{0xff});
  double lanes[kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    const T error = elements[i] - (elements[i] >= T{0} ? scale : -scale);
    elements[i] = values[i] + error;
    if (!(elements[i] >= T{0}))
      bits[i / kBitsPerByte] = static_cast<std::uint8_t>(bits[i / kBitsPerByte] & ~(0x80 >> (i % kBitsPerByte)));
    const double wide = elements[i];
    lanes[i % kLanes] += wide * wide;
  }
  return sum_in_order(lanes);
}

template <class T>
void reference_expand_sum(std::span<const std::uint8_t* const> bits, std::span<const T> scales, T* values,
                          std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::size_t source = 0; source < bits.size(); ++source) {
      const bool positive = (bits[source][i / kBitsPerByte] & (0x80 >> (i % kBitsPerByte))) != 0;
      const T term = positive ? scales[source] : -scales[source];
      values[i] = source == 0 ? term : values[i] + term;
    }
  }
}

// ---- vectorised ----

// Eight bytes of 0 or 1, the first one to the highest bit.
ESPALIER_INLINE std::uint8_t gather_bits(const std::uint8_t* flags) {
  std::uint64_t word;
  std::memcpy(&word, flags, sizeof(word));
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return static_cast<std::uint8_t>((word * 0x8040201008040201u) >> 56);
}

// Two streams of one pass keep memory busier than the processor's own prefetching does: a quarter less time. Addresses
// beyond the end are harmless.
ESPALIER_INLINE void prefetch(const void* position) {
  constexpr std::uintptr_t kBytesAhead = 2048;
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(position) + kBytesAhead));
}

// The elements of one lane each, all lanes side by side.
template <class T>
ESPALIER_INLINE void compress_lanes(const T* values, T* elements, T scale, std::uint8_t* flags, double* lanes,
                                    std::int64_t count) {
  for (std::int64_t lane = 0; lane < count; ++lane) {
    const T element = values[lane] + (elements[lane] - (elements[lane] >= T{0} ? scale : -scale));
    elements[lane] = element;
    flags[lane] = element >= T{0};
    const double wide = element;
    lanes[lane] += wide * wide;
  }
}

template <class T>
ESPALIER_INLINE double compress(const T* values, T* elements, T scale, std::uint8_t* bits, std::int64_t count) {
  constexpr std::int64_t kBytes = kLanes / kBitsPerByte;
  double lanes[kLanes] = {};
  std::uint8_t flags[kLanes];
  std::int64_t begin = 0;
  for (; begin + kLanes <= count; begin += kLanes) {
    prefetch(values + begin);
    prefetch(elements + begin);
    compress_lanes(values + begin, elements + begin, scale, flags, lanes, kLanes);
    for (std::int64_t byte = 0; byte < kBytes; ++byte)
      bits[begin / kBitsPerByte + byte] = gather_bits(flags + byte * kBitsPerByte);
  }
  if (begin < count) {
    std::fill_n(flags, kLanes, std::uint8_t{1});
    compress_lanes(values + begin, elements + begin, scale, flags, lanes, count - begin);
    for (std::int64_t first = begin; first < count; first += kBitsPerByte)
      bits[first / kBitsPerByte] = gather_bits(flags + (first - begin));
  }
  return sum_in_order(lanes);
}

template <class T>
using BitsOf = std::conditional_t<std::is_same_v<T, float>, std::uint32_t, std::uint64_t>;

// What turns +scale into each of the eight elements of a byte: the sign bit where the element's bit is 0.
template <class T>
struct SignMasks {
  alignas(64) std::array<std::array<BitsOf<T>, kBitsPerByte>, 256> of{};
  constexpr SignMasks() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      for (unsigned bit = 0; bit < kBitsPerByte; ++bit) {
        of[byte][bit] = (byte & (0x80u >> bit)) != 0 ? 0 : BitsOf<T>{1} << (sizeof(T) * 8 - 1);
      }
    }
  }
};
template <class T>
constexpr SignMasks<T> kSignMasks;

template <bool first, class T>
ESPALIER_INLINE void expand_source(const std::uint8_t* bits, T scale, T* values, std::int64_t count) {
  const auto scale_bits = std::bit_cast<BitsOf<T>>(scale);
  for (std::int64_t begin = 0; begin < count; begin += kBitsPerByte) {
    const auto& masks = kSignMasks<T>.of[bits[begin / kBitsPerByte]];
    const std::int64_t end = std::min(kBitsPerByte, count - begin);
    const auto one = [&](std::int64_t k) {
      const T term = std::bit_cast<T>(static_cast<BitsOf<T>>(scale_bits ^ masks[static_cast<std::size_t>(k)]));
      values[begin + k] = first ? term : values[begin + k] + term;
    };
    if (end == kBitsPerByte) {
      for (std::int64_t k = 0; k < kBitsPerByte; ++k) one(k);
    } else {
      for (std::int64_t k = 0; k < end; ++k) one(k);
    }
  }
}

template <class T>
ESPALIER_INLINE void expand(std::span<const std::uint8_t* const> bits, std::span<const T> scales, T* values,
                            std::int64_t count) {
  expand_source<true>(bits[0], scales[0], values, count);
  for (std::size_t source = 1; source < bits.size(); ++source)
    expand_source<false>(bits[source], scales[source], values, count);
}

template <class T>
double portable_compress(const T* values, T* elements, T scale, std::uint8_t* bits, std::int64_t count) {
  return compress(values, elements, scale, bits, count);
}
template <class T>
void portable_expand_sum(std::span<const std::uint8_t* const> bits, std::span<const T> scales, T* values,
                         std::int64_t count) {
  expand(bits, scales, values, count);
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx2")]] double avx2_compress(const T* values, T* elements, T scale, std::uint8_t* bits,
                                             std::int64_t count) {
  return compress(values, elements, scale, bits, count);
}
template <class T>
[[gnu::target("avx2")]] void avx2_expand_sum(std::span<const std::uint8_t* const> bits, std::span<const T> scales,
                                             T* values, std::int64_t count) {
  expand(bits, scales, values, count);
}
#endif

}  // namespace

template <class T>
CompressKernels<T> compress_kernels(KernelKind kind) {
  switch (kind) {
    case KernelKind::reference:
      return {reference_compress<T>, reference_expand_sum<T>};
    case KernelKind::portable:
      break;
    case KernelKind::fastest:
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx2")) return {avx2_compress<T>, avx2_expand_sum<T>};
#endif
      break;
  }
  return {portable_compress<T>, portable_expand_sum<T>};
}

template CompressKernels<float> compress_kernels<float>(KernelKind);
template CompressKernels<double> compress_kernels<double>(KernelKind);

}  // namespace espalier::detail
