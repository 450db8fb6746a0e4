// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/values.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "espalier/plan/seed.hpp"

namespace espalier::chaos {
namespace {

// Part `to` of what `from` brings; -1: the only one.
std::vector<std::int64_t> pattern(const Step& step, std::int64_t from, std::int64_t to, std::int64_t count) {
  Random random(derive_seed(step.values, "elements", {from, to}));
  std::vector<std::int64_t> values(static_cast<std::size_t>(std::min(count, Part::kPeriod)));
  const bool multiplied = step.reduce == ReduceOp::product && at::isFloatingType(step.dtype);
  for (std::int64_t& value : values) {
    const std::uint64_t word = random.next() >> 8;
    if (step.dtype == at::kBool) {
      value = static_cast<std::int64_t>(word & 1);
    } else if (step.dtype == at::kByte) {
      value = static_cast<std::int64_t>(word % 128);
    } else if (multiplied) {  // never 0, whose sign would matter
      value = static_cast<std::int64_t>(word % 3 + 1) * ((word & 0x100) != 0 ? 1 : -1);
    } else {
      value = static_cast<std::int64_t>(word % 127) - 63;
    }
  }
  return values;
}

std::int64_t combine(ReduceOp op, bool truth, std::int64_t a, std::int64_t b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return truth ? a | b : static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    case ReduceOp::product:
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::bit_and:
      return a & b;
    case ReduceOp::bit_or:
      return a | b;
    case ReduceOp::bit_xor:
      return a ^ b;
  }
  return 0;
}

Part part(const Step& step, std::int64_t from, std::int64_t to, std::int64_t count) {
  return {.count = count, .pattern = pattern(step, from, to, count)};
}

// All members' part `to`, reduced.
Part reduced(const Step& step, std::int64_t size, std::int64_t to) {
  Part result = part(step, 0, to, step.count);
  for (std::int64_t member = 1; member < size; ++member) {
    const std::vector<std::int64_t> more = pattern(step, member, to, step.count);
    for (std::size_t i = 0; i < more.size(); ++i) {
      result.pattern[i] = combine(step.reduce, step.dtype == at::kBool, result.pattern[i], more[i]);
    }
  }
  if (step.reduce == ReduceOp::mean) result.divisor = size;
  return result;
}

// Uneven parts: anything from nothing to step.count.
std::int64_t uneven(const Step& step, std::int64_t from, std::int64_t to) {
  return Random(derive_seed(step.values, "count", {from, to})).below(step.count + 1);
}

template <class T>
void append(std::vector<char>& bytes, const Part& part) {
  constexpr bool kHalf = std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>;
  std::vector<T> period;
  for (const std::int64_t value : part.pattern) {
    if constexpr (kHalf) {
      const T rounded = static_cast<float>(value);
      period.push_back(part.divisor == 1 ? rounded : T(static_cast<float>(rounded) / static_cast<float>(part.divisor)));
    } else if constexpr (std::is_floating_point_v<T>) {
      period.push_back(static_cast<T>(value) / static_cast<T>(part.divisor));
    } else {
      period.push_back(static_cast<T>(value));
    }
  }
  std::size_t left = static_cast<std::size_t>(part.count) * sizeof(T);
  while (left > 0) {
    const std::size_t now = std::min(left, period.size() * sizeof(T));
    const char* from = reinterpret_cast<const char*>(period.data());
    bytes.insert(bytes.end(), from, from + now);
    left -= now;
  }
}

}  // namespace

std::vector<Part> inputs(const Step& step, std::int64_t size, std::int64_t member) {
  std::vector<Part> parts;
  switch (step.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
    case Kind::all_gather:
    case Kind::gather:
      return {part(step, member, -1, step.count)};
    case Kind::all_gather_v:
      return {part(step, member, -1, uneven(step, member, -1))};
    case Kind::broadcast:
    case Kind::send:
      if (member == step.root) parts.push_back(part(step, member, -1, step.count));
      return parts;
    case Kind::scatter:
      if (member != step.root) return parts;
      [[fallthrough]];
    case Kind::reduce_scatter:
    case Kind::all_to_all:
      for (std::int64_t to = 0; to < size; ++to) parts.push_back(part(step, member, to, step.count));
      return parts;
    case Kind::all_to_all_v:
      for (std::int64_t to = 0; to < size; ++to) parts.push_back(part(step, member, to, uneven(step, member, to)));
      return parts;
    case Kind::barrier:
    case Kind::recv:
    case Kind::save:
      break;
  }
  return parts;
}

std::vector<Part> outputs(const Step& step, std::int64_t size, std::int64_t member) {
  std::vector<Part> parts;
  switch (step.kind) {
    case Kind::all_reduce:
      return {reduced(step, size, -1)};
    case Kind::reduce:
      return {member == step.root ? reduced(step, size, -1) : part(step, member, -1, step.count)};
    case Kind::reduce_scatter:
      return {reduced(step, size, member)};
    case Kind::broadcast:
    case Kind::recv:
      return {part(step, step.root, -1, step.count)};
    case Kind::scatter:
      return {part(step, step.root, member, step.count)};
    case Kind::gather:
      if (member != step.root) return parts;
      [[fallthrough]];
    case Kind::all_gather:
      for (std::int64_t from = 0; from < size; ++from) parts.push_back(part(step, from, -1, step.count));
      return parts;
    case Kind::all_gather_v:
      for (std::int64_t from = 0; from < size; ++from) parts.push_back(part(step, from, -1, uneven(step, from, -1)));
      return parts;
    case Kind::all_to_all:
      for (std::int64_t from = 0; from < size; ++from) parts.push_back(part(step, from, member, step.count));
      return parts;
    case Kind::all_to_all_v:
      for (std::int64_t from = 0; from < size; ++from)
        parts.push_back(part(step, from, member, uneven(step, from, member)));
      return parts;
    case Kind::barrier:
    case Kind::send:
    case Kind::save:
      break;
  }
  return parts;
}

std::vector<std::int64_t> counts(const std::vector<Part>& parts) {
  std::vector<std::int64_t> result;
  for (const Part& part : parts) result.push_back(part.count);
  return result;
}

std::vector<char> bytes_of(const std::vector<Part>& parts, at::ScalarType dtype) {
  std::vector<char> bytes;
  std::int64_t elems = 0;
  for (const Part& one : parts) elems += one.count;
  bytes.reserve(static_cast<std::size_t>(elems) * c10::elementSize(dtype));
  for (const Part& one : parts) {
    switch (dtype) {
      case at::kDouble:
        append<double>(bytes, one);
        break;
      case at::kFloat:
        append<float>(bytes, one);
        break;
      case at::kHalf:
        append<c10::Half>(bytes, one);
        break;
      case at::kBFloat16:
        append<c10::BFloat16>(bytes, one);
        break;
      case at::kLong:
        append<std::int64_t>(bytes, one);
        break;
      case at::kInt:
        append<std::int32_t>(bytes, one);
        break;
      case at::kShort:
        append<std::int16_t>(bytes, one);
        break;
      case at::kChar:
        append<std::int8_t>(bytes, one);
        break;
      case at::kByte:
        append<std::uint8_t>(bytes, one);
        break;
      case at::kBool:
        append<std::uint8_t>(bytes, one);
        break;
      default:
        throw std::logic_error("chaos: no such dtype");
    }
  }
  return bytes;
}

}  // namespace espalier::chaos
