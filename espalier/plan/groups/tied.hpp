// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/plan/groups/group_plan.hpp"
#include "espalier/plan/groups/topology.hpp"

namespace espalier {

struct TiedKey {
  std::string key;
  std::vector<std::int64_t> stages;  // that hold a layer of this key, ascending
};

// Which ranks share the layers of one key: for each key one group per coordinate on all axes but
// pipe, with a rank of each stage that holds the key. Known to every rank for all coordinates. With
// one stage there are no keys and no groups.
class TiedPlan {
 public:
  const std::vector<TiedKey>& keys() const { return keys_; }  // in the order of their first layers
  const GroupPlan& groups() const { return groups_; }         // one family per key; by data, model, then further axes

  // The first member of rank's group of a key: its copy counts in norms, parameter counts and
  // checkpoints. nullopt if the rank holds no copy.
  std::optional<std::int64_t> owner(std::string_view key, std::int64_t rank) const;
  // The rank holds a copy that does not count.
  bool is_replica(std::string_view key, std::int64_t rank) const;

 private:
  friend TiedPlan tied_plan(const ProcessTopology&, std::span<const std::string>, std::span<const std::int64_t>);
  explicit TiedPlan(std::int64_t world_size) : groups_(world_size) {}

  std::vector<TiedKey> keys_;
  GroupPlan groups_;
};

// layer_keys: for each layer its key, or "" for a layer that is not tied. Layers cuts[s] ..
// cuts[s+1]-1 are stage s. ConfigError without a pipe axis, or unless the cuts are stages + 1
// ascending numbers from 0 to the number of layers.
TiedPlan tied_plan(const ProcessTopology& topology, std::span<const std::string> layer_keys,
                   std::span<const std::int64_t> cuts);

}  // namespace espalier
