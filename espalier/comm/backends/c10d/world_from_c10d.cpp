// SPDX-License-Identifier: Apache-2.0
// Worlds of ranks that c10d has brought together: over the program's own process group, or over ours at its store.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/c10d/communicator.hpp"
#include "espalier/comm/backends/c10d/gloo.hpp"
#include "espalier/comm/c10d.hpp"
#include "espalier/comm/rendezvous.hpp"
#include "espalier/comm/world_state.hpp"

namespace espalier {

namespace {

// The connections of a backend that the program has made and of which no more is known.
class ProgramsLink final : public detail::C10dLink {
 public:
  ProgramsLink(c10::intrusive_ptr<c10d::Backend> backend, bool is_the_programs)
      : C10dLink(std::move(backend), is_the_programs) {}
  void break_connections() override {
    try {
      backend->abort();
    } catch (const std::exception&) {  // then its own time-outs have to end what is pending
    }
  }
};

class ProgramsConnector final : public detail::C10dConnector {
 public:
  ProgramsConnector(C10dGroup group, const RankSet& all, std::chrono::milliseconds timeout)
      : group_(std::move(group)), backend_(group_.process_group->getBackend(c10::kCPU)), all_(all), timeout_(timeout) {}

  std::shared_ptr<detail::C10dLink> connect(c10::intrusive_ptr<c10d::Store> store, const RankSet& members,
                                            std::int64_t me, std::string_view name) override {
    if (members == all_ && !programs_own_is_taken_.exchange(true)) {
      if (auto link = detail::link_to_gloo(backend_)) return link;
      return std::make_shared<ProgramsLink>(backend_, true);
    }
    if (group_.make_backend != nullptr) return linked(group_.make_backend(store, members, name), members, me, name);
    if (auto link = detail::gloo_like(backend_, store, members, me, name, timeout_)) return link;
    throw ConfigError(
        fmt::format("group '{}' {}: the process group's backend {} makes no groups of some of its ranks, nor "
                    "duplicates; set C10dGroup::make_backend, which does",
                    name, members.to_string(), backend_->getBackendName()));
  }

  std::string over() const override { return backend_->getBackendName(); }

 private:
  static std::shared_ptr<detail::C10dLink> linked(c10::intrusive_ptr<c10d::Backend> made, const RankSet& members,
                                                  std::int64_t me, std::string_view name) {
    ESPALIER_CHECK_CONFIG(
        made != nullptr && made->getRank() == me && made->getSize() == members.size(),
        "group '{}' {}: C10dGroup::make_backend gave {}; expected a backend of rank {} of {}", name,
        members.to_string(),
        made == nullptr ? "none" : fmt::format("one of rank {} of {}", made->getRank(), made->getSize()), me,
        members.size());
    return std::make_shared<ProgramsLink>(std::move(made), false);
  }

  const C10dGroup group_;
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const RankSet all_;
  const std::chrono::milliseconds timeout_;
  std::atomic<bool> programs_own_is_taken_ = false;  // by the first group of all ranks, which is the world's
};

// "cuda, meta"
std::string devices_of(const c10d::ProcessGroup& process_group) {
  std::vector<std::string> names;
  for (const c10::Device& device : process_group.getDeviceTypes()) names.push_back(device.str());
  std::ranges::sort(names);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

struct Meeting {
  detail::Roster roster;
  detail::Place place;
};

// All ranks find each other at the store.
Meeting meet_at(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t rank, std::int64_t size,
                std::optional<Backend> backend, const WorldOptions& options) {
  const detail::Participant self = detail::this_participant(size, backend ? to_string(*backend) : "");
  Meeting result;
  result.place = {
      .rank = rank, .size = size, .host = self.host, .launcher = "c10d", .backend = backend.value_or(Backend::host)};
  if (size == 1) return result;
  result.roster =
      detail::gather(detail::C10dStore(store).below("espalier"), rank, self, "the store of c10d", options.timeout);
  detail::locate(result.place, result.roster);
  return result;
}

}  // namespace

World World::from_c10d(const C10dGroup& group, const WorldOptions& options) {
  ESPALIER_CHECK_CONFIG(group.process_group != nullptr,
                        "World::from_c10d: the process group is null; expected one that connects "
                        "all ranks");
  ESPALIER_CHECK_CONFIG(!options.backend || options.backend == Backend::c10d,
                        "World::from_c10d: WorldOptions::backend is {}; expected none, or c10d",
                        to_string(*options.backend));
  c10d::ProcessGroup& process_group = *group.process_group;
  ESPALIER_CHECK_CONFIG(
      process_group.hasBackendForDeviceType(c10::kCPU),
      "World::from_c10d: the process group has no backend for CPU tensors (its devices: {}); make it with one, "
      "as in \"cpu:gloo,cuda:nccl\"",
      devices_of(process_group));
  ESPALIER_CHECK_CONFIG(process_group.getStore() != nullptr,
                        "World::from_c10d: the process group has no store; make it with the one that its ranks met at");
  Meeting met =
      meet_at(process_group.getStore(), process_group.getRank(), process_group.getSize(), Backend::c10d, options);
  const std::int64_t size = met.place.size;
  if (size == 1) return detail::make_world(std::move(met.place), nullptr, options);
  auto connector = std::make_shared<ProgramsConnector>(group, RankSet::range(0, size), options.timeout);
  auto transport =
      detail::make_c10d_transport(met.roster.store, met.place.rank, size, options.timeout, std::move(connector));
  return detail::make_world(std::move(met.place), std::move(transport), options);
}

World world_at(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t rank, std::int64_t size,
               const WorldOptions& options) {
  ESPALIER_CHECK_CONFIG(store != nullptr && size >= 1 && rank >= 0 && rank < size,
                        "world_at: {} and rank {} of {}; expected a store, and ranks 0 to size - 1",
                        store == nullptr ? "no store" : "a store", rank, size);
  ESPALIER_CHECK_CONFIG(!options.backend || (options.backend != Backend::mpi && options.backend != Backend::c10d),
                        "world_at: WorldOptions::backend is {}; expected host, gloo, hierarchical or none",
                        to_string(*options.backend));
  Meeting met = meet_at(store, rank, size, options.backend, options);
  if (size == 1) return detail::make_world(std::move(met.place), nullptr, options);
  return detail::make_world_of(met.roster, std::move(met.place), options.backend, options);
}

}  // namespace espalier
