// SPDX-License-Identifier: Apache-2.0
// Digests first: one all-gather of two numbers. Texts travel only when something is wrong, and then to everybody, so
// that all ranks say the same.
#include "espalier/comm/agreement.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/world_state.hpp"

namespace espalier {
namespace {

std::int64_t digest(std::span<const std::string> entries) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto mix = [&hash](std::string_view bytes) {
    for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  };
  for (const std::string& entry : entries) {
    const std::uint64_t length = entry.size();
    mix({reinterpret_cast<const char*>(&length), sizeof(length)});
    mix(entry);
  }
  return static_cast<std::int64_t>(hash);
}

// Every member's numbers, in group order.
std::vector<std::int64_t> gather_numbers(const Group& group, std::span<const std::int64_t> mine) {
  const auto count = static_cast<std::int64_t>(mine.size());
  const at::Tensor input = at::empty({count}, at::kLong);
  std::copy(mine.begin(), mine.end(), input.mutable_data_ptr<std::int64_t>());
  at::Tensor output = at::empty({count * group.size()}, at::kLong);
  all_gather_into(output, input, group).wait();
  const std::int64_t* numbers = output.const_data_ptr<std::int64_t>();
  return {numbers, numbers + output.numel()};
}

// Every member's text, in group order.
std::vector<std::string> gather_texts(const Group& group, std::string_view mine) {
  const std::int64_t length = static_cast<std::int64_t>(mine.size());
  const std::vector<std::int64_t> lengths = gather_numbers(group, {&length, 1});
  const at::Tensor input = at::empty({length}, at::kByte);
  if (length > 0) std::memcpy(input.mutable_data_ptr(), mine.data(), mine.size());
  std::vector<at::Tensor> outputs;
  for (const std::int64_t each : lengths) outputs.push_back(at::empty({each}, at::kByte));
  all_gather_v(outputs, input, group).wait();
  std::vector<std::string> texts;
  for (const at::Tensor& output : outputs) {
    texts.emplace_back(static_cast<const char*>(output.const_data_ptr()), static_cast<std::size_t>(output.numel()));
  }
  return texts;
}

// Entries one after another, each preceded by its length.
std::string pack(std::span<const std::string> entries) {
  std::string packed;
  for (const std::string& entry : entries) packed += fmt::format("{}:{}", entry.size(), entry);
  return packed;
}

std::vector<std::string> unpack(std::string_view packed) {
  std::vector<std::string> entries;
  while (!packed.empty()) {
    const std::size_t colon = packed.find(':');
    const std::size_t length = std::stoul(std::string(packed.substr(0, colon)));
    entries.emplace_back(packed.substr(colon + 1, length));
    packed.remove_prefix(colon + 1 + length);
  }
  return entries;
}

}  // namespace

std::vector<std::vector<std::string>> gather_lists(const Group& group, std::span<const std::string> mine) {
  if (group.size() == 1) return {{mine.begin(), mine.end()}};
  std::vector<std::vector<std::string>> lists;
  for (const std::string& packed : gather_texts(group, pack(mine))) lists.push_back(unpack(packed));
  return lists;
}

void agree(const Group& group, std::string_view subject, std::span<const std::string> entries) {
  if (group.size() == 1) return;
  const std::int64_t mine[] = {digest(entries), static_cast<std::int64_t>(entries.size())};
  group.state().communicator->announce();
  const std::vector<std::int64_t> all = gather_numbers(group, mine);
  bool equal = true;
  for (std::size_t i = 2; i < all.size(); ++i) equal = equal && all[i] == all[i % 2];
  if (equal) return;

  const std::vector<std::vector<std::string>> lists = gather_lists(group, entries);
  for (std::size_t i = 0;; ++i) {
    std::map<std::string, std::vector<std::int64_t>> ranks_of;  // what stands at place i -> world ranks
    bool any = false;
    for (std::size_t member = 0; member < lists.size(); ++member) {
      const bool has = i < lists[member].size();
      any = any || has;
      ranks_of[has ? fmt::format("'{}'", lists[member][i]) : std::string("nothing")].push_back(
          group.world_rank(static_cast<std::int64_t>(member)));
    }
    ESPALIER_CHECK(any, "agree on {}: digests differ but entries do not", subject);
    if (ranks_of.size() == 1) continue;
    std::vector<std::string> sides;
    for (const auto& [entry, ranks] : ranks_of) {
      sides.push_back(fmt::format("{} on rank{} {}", entry, ranks.size() == 1 ? "" : "s", fmt::join(ranks, ",")));
    }
    throw ConfigError(
        fmt::format("{}: the ranks of group '{}' differ, first in entry {}: {}; start all ranks with the same "
                    "arguments",
                    subject, group.name(), i + 1, fmt::join(sides, "; ")));
  }
}

void agree_no_error(const Group& group, const std::optional<std::string>& error) {
  const std::int64_t mine = error.has_value() ? 1 : 0;
  if (group.size() == 1) {
    if (error) throw ConfigError(*error);
    return;
  }
  const std::vector<std::int64_t> flags = gather_numbers(group, {&mine, 1});
  const auto first = std::find(flags.begin(), flags.end(), 1);
  if (first == flags.end()) return;
  const std::vector<std::string> texts = gather_texts(group, error.value_or(""));
  throw ConfigError(texts[static_cast<std::size_t>(first - flags.begin())]);
}

}  // namespace espalier
