// SPDX-License-Identifier: Apache-2.0
// Private: how processes that know only their rank and an address become a world. They meet at a
// key-value store, agree on who is there, and find out who shares a host.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/base/error.hpp"
#include "espalier/comm/store.hpp"
#include "espalier/plan/launch/environment.hpp"

namespace c10d {
class Store;
}

namespace espalier::detail {

// The process that served the store has gone.
class StoreLost : public CommError {
 public:
  using CommError::CommError;
};

// A c10d store as ours.
class C10dStore final : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store);
  ~C10dStore() override;

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override;
  // Returns what the key is then.
  std::string set_if_absent(std::string_view key, std::string_view value);
  // Adds to a counter and returns what it is then; a counter begins at 0.
  std::int64_t add(std::string_view key, std::int64_t amount);
  bool has(std::string_view key);
  // Blocks until all keys are set; false at the deadline.
  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<c10d::Store>& c10d_store() const { return store_; }
  // The same keys below `prefix`.
  std::shared_ptr<C10dStore> below(std::string_view prefix) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// A store within this process, for ranks that are threads.
std::shared_ptr<C10dStore> make_thread_store();

// One rank as the others need to know it.
struct Participant {
  std::string host;     // its name, for people
  std::string machine;  // boot id, pid namespace and ESPALIER_HOST: equal means one host, as far as processes can see
  std::int64_t pid = 0;
  std::string program;
  std::int64_t world_size = 0;
  std::string backend;  // what it was told to use; empty: nothing

  // "pid 12 on node3 (/usr/bin/train)"
  std::string to_string() const;
};
Participant this_participant(std::int64_t world_size, std::string_view backend);

struct Roster {
  std::vector<Participant> participants;  // by rank
  std::shared_ptr<C10dStore> store;       // of this world alone
  std::string why_not_one_host = {};      // empty: all ranks share a host and may open each other's descriptors
  std::string why_not_each_host = {};     // empty: those that share a host may
  std::string meeting_host = {};          // where the store is; empty: unknown
};

// Connects to the store that the environment names (rank 0 serves it unless an agent does), waits
// for all ranks and checks that each is there once and means the same world. Blocks. CommError
// names the ranks that are missing at the deadline; ConfigError, on all ranks, when a rank was
// started twice or two programs meet at one address.
Roster meet(const RankEnvironment& environment, std::string_view backend, std::chrono::milliseconds timeout);

// The same over a store that is there already.
Roster gather(const std::shared_ptr<C10dStore>& store, std::int64_t rank, const Participant& self,
              std::string_view address, std::chrono::milliseconds timeout);

// An address of this rank's host that all others can reach: 127.0.0.1 on one host, else that of the
// interface that leads to them. ConfigError if there is none.
std::string address_for(const Roster& roster, std::int64_t rank);

}  // namespace espalier::detail
