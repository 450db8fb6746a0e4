// SPDX-License-Identifier: Apache-2.0
// World::from_environment: who am I (plan/launch/environment), who else is there (rendezvous), and
// what to talk over.
#include <algorithm>
#include <charconv>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/base/host_name.hpp"
#include "espalier/comm/backends/c10d/gloo.hpp"
#include "espalier/comm/backends/hierarchical/hierarchical.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"
#include "espalier/comm/backends/mpi/mpi.hpp"
#include "espalier/comm/rendezvous.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/comm/world_state.hpp"
#include "espalier/plan/launch/environment.hpp"

namespace espalier {

namespace {

std::optional<Backend> requested_backend(const WorldOptions& options, const Variables& variables) {
  if (options.backend) return options.backend;
  const auto found = variables.find("ESPALIER_BACKEND");
  if (found == variables.end() || found->second.empty()) return std::nullopt;
  try {
    return backend_by_name(found->second);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("ESPALIER_BACKEND={}: {}", found->second, error.what()));
  }
}

// These options, with what the environment says where they say nothing.
WorldOptions completed(WorldOptions options, const Variables& variables) {
  const auto postmortem = variables.find("ESPALIER_POSTMORTEM");
  if (options.postmortem.empty() && postmortem != variables.end()) options.postmortem = postmortem->second;
  const auto buffer = variables.find("ESPALIER_HOST_BUFFER_BYTES");
  if (!options.host_buffer_bytes && buffer != variables.end()) {
    const std::string& text = buffer->second;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), options.host_buffer_bytes.emplace());
    ESPALIER_CHECK_CONFIG(error == std::errc() && end == text.data() + text.size(),
                          "ESPALIER_HOST_BUFFER_BYTES={}: expected a number of bytes, such as 17179869184", text);
  }
  if (const auto check = variables.find("ESPALIER_CHECK_CALLS"); check != variables.end() && !check->second.empty()) {
    ESPALIER_CHECK_CONFIG(check->second == "0" || check->second == "1", "ESPALIER_CHECK_CALLS={}; expected 0 or 1",
                          check->second);
    options.check_calls = options.check_calls || check->second == "1";
  }
  return options;
}

// A number for each rank's machine, in order of first appearance; empty if there is only one.
std::vector<std::int64_t> number_hosts(const std::vector<detail::Participant>& participants) {
  std::map<std::string_view, std::int64_t> numbers;
  std::vector<std::int64_t> host_of_rank;
  for (const detail::Participant& each : participants) {
    const auto next = static_cast<std::int64_t>(numbers.size());
    host_of_rank.push_back(numbers.emplace(each.machine, next).first->second);
  }
  if (numbers.size() == 1) host_of_rank.clear();
  return host_of_rank;
}

Backend choose_backend(std::optional<Backend> requested, const detail::Roster& roster) {
  ESPALIER_CHECK_CONFIG(requested != Backend::host || roster.why_not_one_host.empty(),
                        "world: backend host needs all ranks on one host, but {}; ask for gloo, or for nothing",
                        roster.why_not_one_host);
  ESPALIER_CHECK_CONFIG(
      requested != Backend::hierarchical || roster.why_not_each_host.empty(),
      "world: backend hierarchical needs ranks on one host to share memory, but {}; ask for gloo, or for nothing",
      roster.why_not_each_host);
  if (requested) return *requested;
  if (roster.why_not_one_host.empty()) return Backend::host;
  std::set<std::string_view> machines;
  for (const detail::Participant& each : roster.participants) machines.insert(each.machine);
  const bool some_share = machines.size() < roster.participants.size();
  return some_share && roster.why_not_each_host.empty() ? Backend::hierarchical : Backend::gloo;
}

World make_mpi_world(detail::Place place, const RankEnvironment& found, const WorldOptions& options) {
  ESPALIER_CHECK_CONFIG(
      found.launcher != Launcher::espalier_run && found.launcher != Launcher::torchrun,
      "world: backend mpi needs ranks that MPI starts, but {} started this one ({}={}); start them with espalier "
      "run --backend mpi -n {} -- PROGRAM, with mpirun or with srun",
      to_string(found.launcher), found.rank.variable, place.rank, place.size);
  detail::MpiWorld joined = detail::join_mpi({.timeout = options.timeout, .log = options.log});
  ESPALIER_CHECK_CONFIG(
      joined.rank == place.rank && joined.size == place.size,
      "world: MPI says rank {} of {}, but {}={} and {}={}; start the program with the mpirun of the MPI that "
      "Espalier was built with",
      joined.rank, joined.size, found.rank.variable, place.rank, found.world_size.variable, place.size);
  place.backend = Backend::mpi;
  place.local_rank = joined.local_rank;
  place.local_size = joined.local_size;
  place.host_of_rank = std::move(joined.host_of_rank);
  return detail::make_world(std::move(place), std::move(joined.transport), options);
}

// Some requests to LibTorch's store wait for their answer without a deadline. Where the process that serves it stands
// still, the thread that joins is left behind with them.
World join_within_deadline(const detail::Place& place, const RankEnvironment& found, std::optional<Backend> requested,
                           const WorldOptions& options) {
  constexpr std::chrono::seconds kLonger{5};  // than the deadlines within, whose texts say more
  std::packaged_task<World()> task([=] {
    const detail::Roster roster = detail::meet(found, requested ? to_string(*requested) : "", options.timeout);
    return detail::make_world_of(roster, place, requested, options);
  });
  std::future<World> world = task.get_future();
  std::thread thread(std::move(task));
  if (world.wait_for(options.timeout + kLonger) == std::future_status::ready) {
    thread.join();
    return world.get();
  }
  thread.detach();
  throw CommError(
      fmt::format("world: rank {} of {} did not join within {} ms: the store is reached but does not answer; look at "
                  "the process that serves it, {}",
                  place.rank, place.size, (options.timeout + kLonger) / std::chrono::milliseconds(1),
                  found.agent_serves_store ? "torchrun's agent" : "rank 0"));
}

}  // namespace

World World::from_environment(const WorldOptions& asked) {
  const Variables variables = process_variables();
  const WorldOptions options = completed(asked, variables);
  const RankEnvironment found = discover_ranks(variables);
  const std::optional<Backend> requested = requested_backend(options, variables);
  detail::Place place{.rank = found.rank.value,
                      .size = found.world_size.value,
                      .local_rank = found.local_rank.value,
                      .local_size = 1,
                      .host = host_name(),
                      .launcher = std::string(to_string(found.launcher)),
                      .backend = requested.value_or(Backend::host)};
  ESPALIER_CHECK_CONFIG(
      requested != Backend::c10d,
      "world: backend c10d is the program's process group; make the world with World::from_c10d, or ask for host, "
      "gloo, hierarchical, mpi or nothing");
  if (requested == Backend::mpi) detail::require_mpi();
  if (place.size == 1) return detail::make_world(std::move(place), nullptr, options);

  if (requested == Backend::mpi || (!requested && detail::has_mpi() && mpi_spans_hosts(found))) {
    return make_mpi_world(std::move(place), found, options);
  }
  return join_within_deadline(place, found, requested, options);
}

namespace detail {

void locate(Place& place, const Roster& roster) {
  const auto me = roster.participants.begin() + place.rank;
  const auto is_here = [&](const Participant& other) { return other.machine == me->machine; };
  place.local_rank = std::count_if(roster.participants.begin(), me, is_here);
  place.local_size = std::count_if(roster.participants.begin(), roster.participants.end(), is_here);
  place.host_of_rank = number_hosts(roster.participants);
}

World make_world_of(const Roster& roster, Place place, std::optional<Backend> requested, const WorldOptions& options) {
  locate(place, roster);
  place.backend = choose_backend(requested, roster);
  std::shared_ptr<Transport> transport;
  switch (place.backend) {
    case Backend::host:
      transport = make_host_transport(*roster.store, place.rank, place.size, host_options_of(options));
      break;
    case Backend::gloo:
      transport = make_gloo_transport(roster.store, place.rank, place.size,
                                      {.timeout = options.timeout, .address = address_for(roster, place.rank)});
      break;
    case Backend::hierarchical: {
      std::vector<std::int64_t> host_of_rank = place.host_of_rank;
      if (host_of_rank.empty()) host_of_rank.assign(static_cast<std::size_t>(place.size), 0);
      HostOptions host = host_options_of(options);
      host.host = place.host;
      transport = make_hierarchical_transport(roster.store, place.rank, host_of_rank, std::move(host),
                                              {.address = address_for(roster, place.rank)});
      break;
    }
    case Backend::mpi:
    case Backend::c10d:
      ESPALIER_CHECK(false, "backend {} needs no roster", to_string(place.backend));
  }
  World world = make_world(std::move(place), std::move(transport), options);
  if (world.rank() == 0) world.state().core->store = roster.store;
  return world;
}

}  // namespace detail
}  // namespace espalier
