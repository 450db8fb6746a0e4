// SPDX-License-Identifier: Apache-2.0
// Keys below "espalier/<job>":
//   claims/<rank>    how often this rank was claimed; the n-th world of a program is its n-th generation
// and below "<generation>":
//   owner/<rank>     the participant, as JSON; "first" is one of them, with which all others must agree
//   arrived          how many are there
//   verdict          "ok", set by the last one, or why there is no world; everybody waits for this one key
//   here/<rank>      this rank has done all of the above and waits
//   reach/<rank>     "", or why this rank does not share memory with others on its host, or why there is no world
//   world/...        the store of the world
// Whoever waits until the deadline says for all who is missing, so that they end together.
#include "espalier/comm/rendezvous.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/base/host_name.hpp"
#include "espalier/comm/local_meeting.hpp"

namespace espalier::detail {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How a verdict other than "ok" begins.
const std::string kConfigMark = "config ";
const std::string kCommMark = "comm ";

milliseconds left_until(Clock::time_point deadline) {
  return std::max(std::chrono::ceil<milliseconds>(deadline - Clock::now()), milliseconds(1));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string to_json(const Participant& one) {
  return nlohmann::json{{"host", one.host},       {"machine", one.machine},       {"pid", one.pid},
                        {"program", one.program}, {"world_size", one.world_size}, {"backend", one.backend}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Participant from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {json["host"], json["machine"], json["pid"], json["program"], json["world_size"], json["backend"]};
}

std::string numbered(std::string_view name, std::int64_t rank) { return fmt::format("{}/{}", name, rank); }

std::vector<std::string> numbered_keys(std::string_view name, std::int64_t count) {
  std::vector<std::string> keys;
  for (std::int64_t rank = 0; rank < count; ++rank) keys.push_back(numbered(name, rank));
  return keys;
}

constexpr milliseconds kPatience{2000};

// The server must outlive the last reading of the others: rank 0 waits for them, for a moment.
void acknowledge(C10dStore& store, std::int64_t rank, std::int64_t size) {
  const bool last = store.add("acknowledged", 1) == size;
  if (last) store.set("all_acknowledged", "1");
  if (rank == 0 && !last) store.wait({"all_acknowledged"}, kPatience);
}

std::string missing_text(C10dStore& store, std::int64_t size, milliseconds timeout) {
  std::vector<std::int64_t> missing;
  for (std::int64_t rank = 0; rank < size; ++rank)
    if (!store.has(numbered("here", rank))) missing.push_back(rank);
  return fmt::format(
      "world: rank{} {} of {} did not arrive within {} ms; start {} with the same address, or look "
      "why {} "
      "ended",
      missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), size, timeout.count(),
      missing.size() == 1 ? "it" : "them", missing.size() == 1 ? "it" : "they");
}

// What keeps two participants from being of one world, or nothing.
std::string contradiction(const Participant& first, const Participant& self, std::int64_t rank,
                          std::string_view address) {
  if (self.world_size != first.world_size)
    return fmt::format(
        "world: at {} {} expects {} ranks but rank {}, {}, expects {}; two programs share the "
        "address, or the "
        "sizes differ: give each program its own port and each rank the same size",
        address, first.to_string(), first.world_size, rank, self.to_string(), self.world_size);
  if (self.backend != first.backend)
    return fmt::format(
        "world: {} asks for backend '{}' but rank {}, {}, for '{}' (empty: any); ask for the same "
        "on all ranks "
        "(ESPALIER_BACKEND or WorldOptions::backend)",
        first.to_string(), first.backend, rank, self.to_string(), self.backend);
  return "";
}

// Whether this process may open the descriptors of others on its host: what sharing memory through /proc needs.
std::string why_no_reach(std::int64_t rank, const std::vector<Participant>& participants) {
  const Participant& self = participants[static_cast<std::size_t>(rank)];
  for (std::size_t other = 0; other < participants.size(); ++other) {
    const Participant& one = participants[other];
    if (one.machine != self.machine) continue;
    DIR* const folder = opendir(fmt::format("/proc/{}/fd", one.pid).c_str());
    if (folder == nullptr && (errno == EMFILE || errno == ENFILE))
      return fmt::format("{}world: rank {} ({}) cannot look for the other ranks: {}; raise the limit (ulimit -n)",
                         kCommMark, rank, self.to_string(), std::strerror(errno));
    if (folder == nullptr)
      return fmt::format("rank {} may not open /proc/{}/fd of rank {} ({})", rank, one.pid, other,
                         std::strerror(errno));
    closedir(folder);
  }
  return "";
}

// In the place of those whose `reach` is missing.
void answer_for_missing(C10dStore& store, const std::vector<Participant>& participants, milliseconds timeout) {
  std::vector<std::string> keys, missing;
  for (std::size_t rank = 0; rank < participants.size(); ++rank) {
    const std::string key = numbered("reach", static_cast<std::int64_t>(rank));
    if (store.has(key)) continue;
    keys.push_back(key);
    missing.push_back(fmt::format("rank {} ({})", rank, participants[rank].to_string()));
  }
  for (const std::string& key : keys)
    store.set(key,
              fmt::format(
                  "{}world: {} of {} ranks arrived but were not heard of again within {} ms: {}; look what stopped or "
                  "ended them",
                  kCommMark, missing.size(), participants.size(), timeout.count(), fmt::join(missing, ", ")));
}

std::string why_several_hosts(const std::vector<Participant>& participants) {
  const Participant& first = participants.front();
  for (std::size_t rank = 1; rank < participants.size(); ++rank) {
    if (participants[rank].machine != first.machine)
      return fmt::format("rank 0 is on {} and rank {} on {}", first.host, rank, participants[rank].host);
  }
  return "";
}

// A claim by another process while the rank has an owner means that the rank was started twice. The
// same process again makes its next world.
std::int64_t claim_generation(C10dStore& store, std::int64_t rank, const Participant& self, std::string_view address,
                              milliseconds timeout) {
  const std::int64_t generation = store.add(numbered("claims", rank), 1);
  const std::string mine = to_json(self);
  if (generation == 1) {
    store.set(numbered("holder", rank), mine);
    return 1;
  }
  const Participant holder = from_json(store.get(numbered("holder", rank), timeout));
  if (holder.pid == self.pid && holder.machine == self.machine) return generation;
  const std::string text = fmt::format(
      "world: rank {} is there twice: {} and {}, both at {}; a rank was started twice, or two "
      "programs share the address: "
      "give each rank its own number and each program its own port",
      rank, holder.to_string(), self.to_string(), address);
  store.set("1/verdict", kConfigMark + text);
  throw ConfigError(text);
}

// What a launcher that names no address leaves to us; returns rank 0's listening socket.
std::optional<int> find_address(RankEnvironment& place, milliseconds timeout) {
  const bool one_host = place.local_world_size && place.local_world_size->value == place.world_size.value;
  ESPALIER_CHECK_CONFIG(one_host && place.job,
                        "world: {} gives rank {} of {} no address to meet at{}; set MASTER_ADDR to the host of rank "
                        "0 and "
                        "MASTER_PORT to a free port there, the same on all ranks",
                        to_string(place.launcher), place.rank.value, place.world_size.value,
                        one_host ? " and no name of the job" : ", and the ranks are not known to share a host");
  const LocalMeeting meeting = meet_locally(place.job->value, place.rank.value, place.world_size.value, timeout);
  place.master_address = FoundText{"127.0.0.1", place.job->variable};
  place.master_port = FoundNumber{meeting.port, place.job->variable};
  if (meeting.descriptor < 0) return std::nullopt;
  return meeting.descriptor;
}

// The socket that rank 0 of `espalier run` inherited. The server closes the one it is given, and
// the program's next world needs it again.
std::optional<int> copy_of_inherited(const RankEnvironment& environment) {
  if (!environment.store_descriptor) return std::nullopt;
  const int inherited = static_cast<int>(environment.store_descriptor->value);
  fcntl(inherited, F_SETFD, FD_CLOEXEC);  // not for processes that this one starts
  const int copy = fcntl(inherited, F_DUPFD_CLOEXEC, 3);
  ESPALIER_CHECK_CONFIG(copy >= 0, "world: {}={} is no open descriptor: {}; leave it to espalier run to set it",
                        environment.store_descriptor->variable, inherited, std::strerror(errno));
  return copy;
}

// Whoever runs out of descriptors amid a meeting may take the others for unreachable, or is ended by LibTorch's store.
void check_descriptors(std::int64_t rank, std::int64_t size, bool serves) {
  const std::int64_t needed = 16 + (serves ? size : 0);  // all ranks connect to the store
  std::vector<int> opened;
  const int any = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (any >= 0) opened.push_back(any);
  while (!opened.empty() && static_cast<std::int64_t>(opened.size()) < needed) {
    const int copy = fcntl(any, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) break;
    opened.push_back(copy);
  }
  const int reason = errno;
  for (const int descriptor : opened) close(descriptor);
  ESPALIER_CHECK_CONFIG(
      static_cast<std::int64_t>(opened.size()) == needed,
      "world: rank {} of {} can open {} more files ({}), but joining takes up to {}; raise the limit (ulimit "
      "-n)",
      rank, size, opened.size(), std::strerror(reason), needed);
}

// The address from which packets to `host` leave; empty if it is unknown. Nothing is sent.
std::string local_address_towards(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  std::string result;
  for (const addrinfo* one = found; one != nullptr && result.empty(); one = one->ai_next) {
    const int probe = socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage address = {};
    socklen_t length = sizeof address;
    char text[NI_MAXHOST] = {};
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (probe >= 0 && connect(probe, one->ai_addr, one->ai_addrlen) == 0 && getsockname(probe, any, &length) == 0 &&
        getnameinfo(any, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      result = text;
    if (probe >= 0) close(probe);
  }
  freeaddrinfo(found);
  return result;
}

c10::intrusive_ptr<c10d::Store> connect_store(const RankEnvironment& environment, std::optional<int> listener,
                                              milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment.master_port->value);
  options.isServer = environment.rank.value == 0 && !environment.agent_serves_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.multiTenant = true;  // a second world of this program finds the server of the first
  if (options.isServer) options.masterListenFd = listener;
  const std::string address = fmt::format("{}:{}", environment.master_address->value, environment.master_port->value);
  try {
    return c10::make_intrusive<c10d::TCPStore>(environment.master_address->value, options);
  } catch (const std::exception& error) {
    const std::string cause = first_line(error.what());
    ESPALIER_CHECK_CONFIG(!options.isServer,
                          "world: rank 0 cannot serve the store at {}: {}; if another program uses the port, choose "
                          "another one on all ranks ({})",
                          address, cause, environment.master_port->variable);
    throw CommError(
        fmt::format("world: rank {} of {} found nobody at {} within {} ms: {}; rank 0 serves the "
                    "store there: start "
                    "it, or correct the address ({})",
                    environment.rank.value, environment.world_size.value, address, timeout.count(), cause,
                    environment.master_address->variable));
  }
}

}  // namespace

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
C10dStore::~C10dStore() = default;

namespace {

// What c10d throws when the server has gone, as a CommError.
template <typename Body>
auto store_request(std::string_view what, std::string_view key, const Body& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw StoreLost(
        fmt::format("store: {} of '{}' failed: {}; the process that serves the store has ended or "
                    "cannot be reached",
                    what, key, first_line(error.what())));
  }
}

}  // namespace

void C10dStore::set(std::string_view key, std::string_view value) {
  store_request("set", key, [&] {
    store_->set(std::string(key), std::vector<std::uint8_t>(value.begin(), value.end()));
    return 0;
  });
}

std::string C10dStore::get(std::string_view key, milliseconds timeout) {
  if (!wait({std::string(key)}, timeout))
    throw CommError(fmt::format("store: '{}' was not set within {} ms; the rank that sets it is late or has ended", key,
                                timeout.count()));
  return store_request("get", key, [&] {
    const std::vector<std::uint8_t> value = store_->get(std::string(key));
    return std::string(value.begin(), value.end());
  });
}

std::string C10dStore::set_if_absent(std::string_view key, std::string_view value) {
  return store_request("set", key,
                       [&] { return store_->compareSet(std::string(key), std::string(), std::string(value)); });
}

std::int64_t C10dStore::add(std::string_view key, std::int64_t amount) {
  return store_request("add", key, [&] { return store_->add(std::string(key), amount); });
}

bool C10dStore::has(std::string_view key) {
  return store_request("check", key, [&] { return store_->check({std::string(key)}); });
}

bool C10dStore::wait(const std::vector<std::string>& keys, milliseconds timeout) {
  return store_request("wait", keys.front(), [&] {
    try {
      store_->wait(keys, timeout);
      return true;
    } catch (const c10::DistStoreError&) {
      if (store_->check(keys)) return true;  // also tells a deadline from a server that has gone: that throws again
      return false;
    }
  });
}

std::shared_ptr<C10dStore> C10dStore::below(std::string_view prefix) const {
  return std::make_shared<C10dStore>(c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store_));
}

std::shared_ptr<C10dStore> make_thread_store() {
  return std::make_shared<C10dStore>(c10::make_intrusive<c10d::HashStore>());
}

std::string Participant::to_string() const { return fmt::format("pid {} on {} ({})", pid, host, program); }

Participant this_participant(std::int64_t world_size, std::string_view backend) {
  std::error_code ignored;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  return {host_name(),
          read_line("/proc/sys/kernel/random/boot_id") + " " + space + " " + environment_variable("ESPALIER_HOST"),
          getpid(),
          program,
          world_size,
          std::string(backend)};
}

Roster gather(const std::shared_ptr<C10dStore>& store, std::int64_t rank, const Participant& self,
              std::string_view address, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const std::int64_t size = self.world_size;
  const std::int64_t generation = claim_generation(*store, rank, self, address, timeout);
  const auto mine = store->below(std::to_string(generation));
  mine->set(numbered("owner", rank), to_json(self));
  const Participant first = from_json(mine->set_if_absent("first", to_json(self)));
  if (const std::string trouble = contradiction(first, self, rank, address); !trouble.empty())
    mine->set("verdict", kConfigMark + trouble);
  else if (mine->add("arrived", 1) == size)
    mine->set("verdict", "ok");
  mine->set(numbered("here", rank), "");
  if (!mine->wait({"verdict"}, left_until(deadline)))
    mine->set("verdict", kCommMark + missing_text(*mine, size, timeout));
  const std::string verdict = mine->get("verdict", kPatience);
  if (verdict != "ok") {
    acknowledge(*mine, rank, size);
    if (verdict.starts_with(kCommMark)) throw CommError(verdict.substr(kCommMark.size()));
    throw ConfigError(verdict.substr(kConfigMark.size()));
  }

  Roster roster;
  for (const std::string& key : numbered_keys("owner", size))
    roster.participants.push_back(from_json(mine->get(key, left_until(deadline))));
  mine->set(numbered("reach", rank), why_no_reach(rank, roster.participants));
  const std::vector<std::string> reach = numbered_keys("reach", size);
  if (!mine->wait(reach, left_until(deadline))) answer_for_missing(*mine, roster.participants, timeout);
  for (const std::string& key : reach) {
    const std::string why_not = mine->get(key, kPatience);
    if (why_not.starts_with(kCommMark)) {
      acknowledge(*mine, rank, size);
      throw CommError(why_not.substr(kCommMark.size()));
    }
    if (roster.why_not_each_host.empty()) roster.why_not_each_host = why_not;
  }
  roster.why_not_one_host = why_several_hosts(roster.participants);
  if (roster.why_not_one_host.empty()) roster.why_not_one_host = roster.why_not_each_host;
  roster.store = mine->below("world");
  return roster;
}

Roster meet(const RankEnvironment& environment, std::string_view backend, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  RankEnvironment place = environment;
  const bool serves = place.rank.value == 0 && !place.agent_serves_store;
  check_descriptors(place.rank.value, place.world_size.value, serves);
  std::optional<int> listener;
  if (!place.master_address) listener = find_address(place, timeout);
  const std::string address = fmt::format("{}:{}", place.master_address->value, place.master_port->value);
  const std::string prefix = "espalier/" + (place.job ? place.job->value : "");
  const Participant self = this_participant(place.world_size.value, backend);
  while (true) {
    if (serves && !listener) listener = copy_of_inherited(place);
    const auto store = std::make_shared<C10dStore>(connect_store(place, listener, left_until(deadline)));
    try {
      Roster roster = gather(store->below(prefix), place.rank.value, self, address, left_until(deadline));
      roster.meeting_host = place.master_address->value;
      return roster;
    } catch (const StoreLost&) {
      // Perhaps the server of this program's last world, which rank 0 was just about to close: try
      // the next one.
      if (serves || Clock::now() >= deadline) throw;
    }
  }
}

std::string address_for(const Roster& roster, std::int64_t rank) {
  if (roster.why_not_one_host.empty()) return "127.0.0.1";
  const auto is_loopback = [](const std::string& address) {
    return address.starts_with("127.") || address == "::1" || address == "localhost";
  };
  if (is_loopback(roster.meeting_host)) return "127.0.0.1";  // where all have met
  // On the way to where all have met; on that host itself, that address.
  const auto reachable = [&](const std::string& address) { return !address.empty() && !is_loopback(address); };
  if (const std::string address = local_address_towards(roster.meeting_host); reachable(address)) return address;
  const std::string& machine = roster.participants[static_cast<std::size_t>(rank)].machine;
  for (const Participant& other : roster.participants) {
    if (other.machine == machine) continue;
    const std::string address = local_address_towards(other.host);
    if (reachable(address)) return address;
  }
  throw ConfigError(
      fmt::format("world: rank {} on {} finds no way to the other hosts; make their names resolvable here", rank,
                  roster.participants[static_cast<std::size_t>(rank)].host));
}

}  // namespace espalier::detail
