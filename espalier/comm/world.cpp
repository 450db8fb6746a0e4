// SPDX-License-Identifier: Apache-2.0
// The handles of a world and its registry of groups. How a process finds out its rank is in discovery.
#include "espalier/comm/world.hpp"

#include <ATen/ops/empty.h>

#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/checked_calls.hpp"
#include "espalier/comm/world_state.hpp"
#include "espalier/plan/groups/host_crossings.hpp"

namespace espalier {
namespace detail {
namespace {

// Tells the communication space of (members, duplicate name) from others: FNV-1a, the same on all members.
std::uint64_t context_of(const std::vector<std::int64_t>& members, std::string_view duplicate) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ ((value >> (8 * byte)) & 0xff)) * 0x100000001b3;
  };
  for (const std::int64_t member : members) mix(static_cast<std::uint64_t>(member));
  mix(~std::uint64_t{0});
  for (const char letter : duplicate) mix(static_cast<unsigned char>(letter));
  return hash;
}

}  // namespace

WorldCore::WorldCore(Place the_place, std::shared_ptr<Transport> the_transport, const WorldOptions& options)
    : place(std::move(the_place)),
      transport(std::move(the_transport)),
      log(options.log, fmt::format("[rank {}] ", place.rank)),
      timeout(options.timeout),
      checks_calls(options.check_calls) {}

std::shared_ptr<GroupState> WorldCore::group(const std::shared_ptr<WorldCore>& self, const RankSet& members,
                                             std::string_view name, std::string_view duplicate) {
  check_open("making a group", name);
  const std::optional<std::int64_t> rank = members.index_of(place.rank);
  ESPALIER_CHECK_CONFIG(rank.has_value(), "group '{}': rank {} is not a member of {}; only members make a group", name,
                        place.rank, members.to_string());
  ESPALIER_CHECK_CONFIG(members.member(0) >= 0 && members.member(members.size() - 1) < place.size,
                        "group '{}': {} has ranks outside the world; its ranks are 0 to {}", name, members.to_string(),
                        place.size - 1);
  const std::lock_guard lock(mutex_);
  const Key key{members.to_vector(), duplicate};
  if (!duplicate.empty()) {
    const auto [entry, is_new] = duplicates_.emplace(duplicate, key.first);
    ESPALIER_CHECK_CONFIG(
        entry->second == key.first,
        "group.duplicate: the name '{}' belongs to the ranks [{}], not to {}; give each duplicate its "
        "own name",
        duplicate, fmt::join(entry->second, ","), members.to_string());
  }
  std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<GroupState>& known = groups_[{key, std::string(name)}];
  if (auto state = known.lock()) return state;

  auto state = std::make_shared<GroupState>();
  state->core = self;
  state->name = name;
  state->duplicate = duplicate;
  state->members = members;
  state->rank = *rank;
  state->size = members.size();
  if (state->size > 1) {
    ESPALIER_CHECK(transport != nullptr, "a group of {} in a world without transport", state->size);
    std::shared_ptr<Communicator>& communicator = communicators_[key];
    if (communicator == nullptr) {
      communicator = transport->connect(members, name, context_of(key.first, duplicate));
      if (checks_calls && !communicator->capabilities().names_different_calls)
        communicator = check_calls(std::move(communicator), transport, members, name);
    }
    state->communicator = communicator;
    state->capabilities = communicator->capabilities();
  }
  known = state;
  return state;
}

void WorldCore::park(std::shared_ptr<Operation> operation) {
  const std::lock_guard lock(parked_mutex_);
  parked_.push_back(std::move(operation));
}

void WorldCore::advance_parked() {
  const std::lock_guard lock(parked_mutex_);
  for (auto operation = parked_.begin(); operation != parked_.end();) {  // done() may throw
    operation = (*operation)->done() ? parked_.erase(operation) : operation + 1;
  }
}

void WorldCore::close() {
  closed_ = true;
  if (transport != nullptr) transport->close();
}

void WorldCore::check_open(std::string_view where, std::string_view group) const {
  ESPALIER_CHECK_CONFIG(!closed_,
                        "{} on group '{}': rank {} has closed its world: its run_ranks body has returned; use a "
                        "World, and what came from it, only inside that body",
                        where, group, place.rank);
}

void warn_of_host_crossings(const World& world, const GroupPlan& plan) {
  if (world.rank() != 0 || world.host_of_rank().empty()) return;
  for (const std::string& line : host_crossings(plan, world.host_of_rank())) world.log().warning("groups: " + line);
}

World make_world(Place place, std::shared_ptr<Transport> transport, const WorldOptions& options) {
  auto state = std::make_shared<WorldState>();
  const std::int64_t size = place.size;
  state->core = std::make_shared<WorldCore>(std::move(place), std::move(transport), options);
  state->group = Group(state->core->group(state->core, RankSet::range(0, size), "world", ""));
  return World(std::move(state));
}

}  // namespace detail

Backend backend_by_name(std::string_view name) {
  if (name == "host") return Backend::host;
  if (name == "gloo") return Backend::gloo;
  if (name == "hierarchical") return Backend::hierarchical;
  if (name == "mpi") return Backend::mpi;
  throw ConfigError(fmt::format("backend: there is no '{}'; choose host, gloo, hierarchical or mpi", name));
}

std::string_view to_string(Backend backend) {
  switch (backend) {
    case Backend::host:
      return "host";
    case Backend::gloo:
      return "gloo";
    case Backend::hierarchical:
      return "hierarchical";
    case Backend::mpi:
      return "mpi";
    case Backend::c10d:
      return "c10d";
  }
  return "?";
}

World::World(std::shared_ptr<detail::WorldState> state) : state_(std::move(state)) {}

std::int64_t World::rank() const { return state_->core->place.rank; }
std::int64_t World::size() const { return state_->core->place.size; }
std::int64_t World::local_rank() const { return state_->core->place.local_rank; }
std::int64_t World::local_size() const { return state_->core->place.local_size; }
const std::string& World::host() const { return state_->core->place.host; }
std::span<const std::int64_t> World::host_of_rank() const { return state_->core->place.host_of_rank; }
Backend World::backend() const { return state_->core->place.backend; }
std::string_view World::launcher() const { return state_->core->place.launcher; }
const Group& World::group() const { return state_->group; }
const Log& World::log() const { return state_->core->log; }

Group World::make_group(const RankSet& members, std::string_view name) const {
  return Group(state_->core->group(state_->core, members, name, ""));
}

at::Tensor World::host_buffer(at::IntArrayRef sizes, at::ScalarType dtype) const {
  state_->core->check_open("host_buffer", "world");
  const at::Tensor buffer =
      state_->core->transport == nullptr ? at::Tensor() : state_->core->transport->buffer(sizes, dtype);
  return buffer.defined() ? buffer : at::empty(sizes, dtype);
}

double World::wait_seconds() const {
  return state_->core->transport == nullptr ? 0 : state_->core->transport->wait_seconds();
}

std::int64_t World::bytes_sent() const {
  return state_->core->transport == nullptr ? 0 : state_->core->transport->bytes_sent();
}

}  // namespace espalier
