// SPDX-License-Identifier: Apache-2.0
// A block of accumulators stays in the first-level cache while all sources are added to it. The loops are plain; on x86
// they are compiled a second time for AVX2.
#include "espalier/comm/backends/host/reduce.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "espalier/base/check.hpp"
#include "espalier/comm/names.hpp"

#define ESPALIER_INLINE [[gnu::always_inline]] inline

namespace espalier::detail::host {
namespace {

constexpr std::int64_t kBlock = 1024;

template <class T>
constexpr bool kIsSmallFloat = std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>;
template <class T>
constexpr bool kIsFloating = std::is_floating_point_v<T> || kIsSmallFloat<T>;

// What sums are kept in: float for the small floats, unsigned for integers (wraps instead of undefined behaviour).
template <class T>
struct AccumulatorOf {
  using type = std::make_unsigned_t<T>;
};
template <class T>
  requires kIsFloating<T>
struct AccumulatorOf<T> {
  using type = std::conditional_t<std::is_same_v<T, double>, double, float>;
};
template <>
struct AccumulatorOf<bool> {
  using type = std::uint8_t;
};

template <ReduceOp op, class T, class A>
ESPALIER_INLINE A combine(A a, A b) {
  if constexpr (op == ReduceOp::sum || op == ReduceOp::mean) return static_cast<A>(a + b);
  if constexpr (op == ReduceOp::product) return static_cast<A>(a * b);
  if constexpr (op == ReduceOp::min || op == ReduceOp::max) {
    if constexpr (kIsFloating<T>) {
      const bool takes = op == ReduceOp::min ? b < a : b > a;
      return takes || b != b ? b : a;
    } else {
      const bool takes =
          op == ReduceOp::min ? static_cast<T>(b) < static_cast<T>(a) : static_cast<T>(b) > static_cast<T>(a);
      return takes ? b : a;
    }
  }
  if constexpr (!kIsFloating<T>) {
    if constexpr (op == ReduceOp::bit_and) return static_cast<A>(a & b);
    if constexpr (op == ReduceOp::bit_or) return static_cast<A>(a | b);
    if constexpr (op == ReduceOp::bit_xor) return static_cast<A>(a ^ b);
  }
  return a;
}

template <ReduceOp op, class T>
ESPALIER_INLINE void reduce_blocks(std::span<const void* const> sources, void* out, std::span<void* const> also,
                                   std::int64_t count) {
  using A = typename AccumulatorOf<T>::type;
  alignas(64) A accumulator[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    const T* second = static_cast<const T*>(sources[1]) + begin;
    for (std::int64_t k = 0; k < n; ++k) {
      accumulator[k] = combine<op, T, A>(static_cast<A>(first[k]), static_cast<A>(second[k]));
    }
    for (std::size_t i = 2; i < sources.size(); ++i) {
      const T* next = static_cast<const T*>(sources[i]) + begin;
      for (std::int64_t k = 0; k < n; ++k) accumulator[k] = combine<op, T, A>(accumulator[k], static_cast<A>(next[k]));
    }
    if constexpr (op == ReduceOp::mean && kIsFloating<T>) {
      const A size = static_cast<A>(sources.size());
      for (std::int64_t k = 0; k < n; ++k) accumulator[k] = static_cast<A>(static_cast<T>(accumulator[k])) / size;
    }
    T* to = static_cast<T*>(out) + begin;
    if (also.empty()) {
      for (std::int64_t k = 0; k < n; ++k) to[k] = static_cast<T>(accumulator[k]);
      continue;
    }
    T* and_to = static_cast<T*>(also[0]) + begin;
#pragma GCC ivdep
    for (std::int64_t k = 0; k < n; ++k) and_to[k] = to[k] = static_cast<T>(accumulator[k]);
    for (std::size_t i = 1; i < also.size(); ++i) {
      std::memcpy(static_cast<T*>(also[i]) + begin, to, static_cast<std::size_t>(n) * sizeof(T));
    }
  }
}

template <ReduceOp op>
ESPALIER_INLINE void reduce_any(c10::ScalarType dtype, std::span<const void* const> sources, void* out,
                                std::span<void* const> also, std::int64_t count) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return reduce_blocks<op, double>(sources, out, also, count);
    case c10::ScalarType::Float:
      return reduce_blocks<op, float>(sources, out, also, count);
    case c10::ScalarType::Half:
      return reduce_blocks<op, c10::Half>(sources, out, also, count);
    case c10::ScalarType::BFloat16:
      return reduce_blocks<op, c10::BFloat16>(sources, out, also, count);
    case c10::ScalarType::Long:
      return reduce_blocks<op, std::int64_t>(sources, out, also, count);
    case c10::ScalarType::Int:
      return reduce_blocks<op, std::int32_t>(sources, out, also, count);
    case c10::ScalarType::Short:
      return reduce_blocks<op, std::int16_t>(sources, out, also, count);
    case c10::ScalarType::Char:
      return reduce_blocks<op, std::int8_t>(sources, out, also, count);
    case c10::ScalarType::Byte:
      return reduce_blocks<op, std::uint8_t>(sources, out, also, count);
    default:
      return;  // refused in reduce()
  }
}

ESPALIER_INLINE void reduce_every(ReduceOp op, c10::ScalarType dtype, std::span<const void* const> sources, void* out,
                                  std::span<void* const> also, std::int64_t count) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_any<ReduceOp::sum>(dtype, sources, out, also, count);
    case ReduceOp::mean:
      return reduce_any<ReduceOp::mean>(dtype, sources, out, also, count);
    case ReduceOp::product:
      return reduce_any<ReduceOp::product>(dtype, sources, out, also, count);
    case ReduceOp::min:
      return reduce_any<ReduceOp::min>(dtype, sources, out, also, count);
    case ReduceOp::max:
      return reduce_any<ReduceOp::max>(dtype, sources, out, also, count);
    case ReduceOp::bit_and:
      return reduce_any<ReduceOp::bit_and>(dtype, sources, out, also, count);
    case ReduceOp::bit_or:
      return reduce_any<ReduceOp::bit_or>(dtype, sources, out, also, count);
    case ReduceOp::bit_xor:
      return reduce_any<ReduceOp::bit_xor>(dtype, sources, out, also, count);
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void reduce_avx2(ReduceOp op, c10::ScalarType dtype, std::span<const void* const> sources,
                                         void* out, std::span<void* const> also, std::int64_t count) {
  reduce_every(op, dtype, sources, out, also, count);
}
#endif

void reduce_plain(ReduceOp op, c10::ScalarType dtype, std::span<const void* const> sources, void* out,
                  std::span<void* const> also, std::int64_t count) {
  reduce_every(op, dtype, sources, out, also, count);
}

// A bool is a byte of 0 or 1: its reductions are those of uint8 with these operations.
ReduceOp on_truth_values(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bit_or:
      return ReduceOp::bit_or;
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::bit_and:
      return ReduceOp::bit_and;
    case ReduceOp::bit_xor:
      return ReduceOp::bit_xor;
    case ReduceOp::mean:
      return ReduceOp::mean;
  }
  return op;
}

}  // namespace

void reduce(ReduceOp op, c10::ScalarType dtype, std::span<const void* const> sources, void* out,
            std::span<void* const> also, std::int64_t count) {
  const bool floating = c10::isFloatingType(dtype);
  const bool bitwise = op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
  ESPALIER_CHECK(dtype_supported(dtype) && !(floating && bitwise) && !(!floating && op == ReduceOp::mean),
                 "no reduction {} of {}", detail::to_string(op), dtype_name(dtype));
  if (dtype == c10::ScalarType::Bool) {
    op = on_truth_values(op);
    dtype = c10::ScalarType::Byte;
  }
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return reduce_avx2(op, dtype, sources, out, also, count);
#endif
  reduce_plain(op, dtype, sources, out, also, count);
}

}  // namespace espalier::detail::host
