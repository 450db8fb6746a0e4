// SPDX-License-Identifier: Apache-2.0
// Private: what World and Group handles point to, and how a world is put together.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/comm/communicator.hpp"
#include "espalier/comm/store.hpp"
#include "espalier/comm/world.hpp"

namespace espalier {
class GroupPlan;
}

namespace espalier::detail {

// Where a rank is and who started it.
struct Place {
  std::int64_t rank = 0;
  std::int64_t size = 1;
  std::int64_t local_rank = 0;
  std::int64_t local_size = 1;
  std::string host;
  std::string launcher;
  Backend backend = Backend::host;
  std::vector<std::int64_t> host_of_rank = {};  // empty: all ranks share a host
};

// What the groups of one world share. Communicators live as long as it does, because dropping one on a single rank
// would lose its place in the sequence of operations.
struct WorldCore {
  WorldCore(Place the_place, std::shared_ptr<Transport> the_transport, const WorldOptions& options);

  // The state of the group of `members` under `name`; `duplicate` is empty for the shared communicator of these ranks.
  std::shared_ptr<GroupState> group(const std::shared_ptr<WorldCore>& self, const RankSet& members,
                                    std::string_view name, std::string_view duplicate);

  // Keeps what still has to be finished on this rank after its Work was dropped, and finishes what can be.
  void park(std::shared_ptr<Operation> operation);
  void advance_parked();

  // Leaves the world although handles to it may still exist. Blocks until what others wait for is handed over.
  void close();
  // ConfigError when it was closed; `where` says who asks: "all_reduce_ on group 'data'".
  void check_open(std::string_view where, std::string_view group) const;

  const Place place;
  const std::shared_ptr<Transport> transport;  // null in a world of one
  const Log log;
  const std::chrono::milliseconds timeout;  // of waits without a deadline of their own
  const bool checks_calls;                  // where the backend does not find different calls by itself
  std::shared_ptr<Store> store =
      {};  // that rank 0 serves, as long as this world is there, to worlds that the same ranks make later

 private:
  std::atomic<bool> closed_ = false;
  std::mutex parked_mutex_;
  std::vector<std::shared_ptr<Operation>> parked_;

  using Key = std::pair<std::vector<std::int64_t>, std::string>;  // members, duplicate name
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Communicator>> communicators_;
  std::map<std::pair<Key, std::string>, std::weak_ptr<GroupState>> groups_;   // and the name shown
  std::map<std::string, std::vector<std::int64_t>, std::less<>> duplicates_;  // name -> members
};

struct GroupState {
  std::shared_ptr<WorldCore> core;
  std::string name;
  std::string duplicate;  // empty: shares the communicator of its rank set
  RankSet members;
  std::int64_t rank = 0;  // in the group
  std::int64_t size = 1;
  std::shared_ptr<Communicator> communicator;  // null in a group of one
  Capabilities capabilities;
  std::optional<std::chrono::milliseconds> timeout = {};  // of waits; none: the world's
};

struct WorldState {
  std::shared_ptr<WorldCore> core;
  Group group;  // all ranks
};

// Where hosts are known, rank 0 logs which groups of the plan cross them that need not.
void warn_of_host_crossings(const World& world, const GroupPlan& plan);

// A world of the ranks that `transport` reaches (null: a world of one).
World make_world(Place place, std::shared_ptr<Transport> transport, const WorldOptions& options);

struct Roster;
// Who shares this rank's host.
void locate(Place& place, const Roster& roster);
// A world of the ranks of the roster over `requested`, else host when they share one, else hierarchical when
// some do, else gloo.
World make_world_of(const Roster& roster, Place place, std::optional<Backend> requested, const WorldOptions& options);

}  // namespace espalier::detail
