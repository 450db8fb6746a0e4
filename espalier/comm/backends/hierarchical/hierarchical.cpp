// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/hierarchical/hierarchical.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/hierarchical/bridge.hpp"
#include "espalier/comm/backends/hierarchical/placement.hpp"
#include "espalier/comm/backends/hierarchical/spanning_communicator.hpp"

namespace espalier::detail {
namespace hierarchical {
namespace {

// Another context for each use.
std::uint64_t derived(std::uint64_t context, std::uint64_t use) { return (context ^ use) * 0x9e3779b97f4a7c15; }

std::vector<std::int64_t> ranks_on(std::span<const std::int64_t> host_of_rank, std::int64_t host) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < std::ssize(host_of_rank); ++rank) {
    if (host_of_rank[static_cast<std::size_t>(rank)] == host) ranks.push_back(rank);
  }
  return ranks;
}

class HierarchicalTransport final : public Transport {
 public:
  // `inside` is null on a rank that is alone on its host.
  HierarchicalTransport(std::int64_t rank, std::span<const std::int64_t> host_of_rank, std::string host,
                        std::chrono::milliseconds timeout, std::shared_ptr<Transport> inside,
                        std::shared_ptr<Transport> between)
      : rank_(rank),
        host_of_rank_(host_of_rank.begin(), host_of_rank.end()),
        host_(std::move(host)),
        timeout_(timeout),
        inside_(std::move(inside)),
        between_(std::move(between)),
        bridge_(std::make_shared<Bridge>(inside_, between_)),
        ranks_here_(ranks_on(host_of_rank_, host_of_rank_[static_cast<std::size_t>(rank)])) {}
  ~HierarchicalTransport() override { close(); }

  std::shared_ptr<Communicator> connect(const RankSet& members, std::string_view name, std::uint64_t context) override {
    bridge_->check();
    Placement placement(members, host_of_rank_, rank_);
    if (placement.num_hosts() == 1) return connect_inside(members.to_vector(), name, context);
    const auto& here = placement.hosts[static_cast<std::size_t>(placement.host)];
    Links links;
    if (here.size() > 1) {
      links.inside = connect_inside(here, fmt::format("{} on {}", name, host_), derived(context, 1));
      links.calls = connect_inside(here, name, derived(context, 2));
    }
    links.whole = between_->connect(members, name, context);
    const RankSet peers = placement.between();
    if (peers != members && peers.contains(rank_)) {
      links.between = between_->connect(peers, fmt::format("{} between hosts", name),
                                        derived(context, 3 + static_cast<std::uint64_t>(placement.place())));
    }
    auto steps = std::make_shared<Steps>(bridge_, rank_, timeout_);
    {
      const std::lock_guard lock(mutex_);
      steps_.push_back(steps);
    }
    return make_spanning_communicator(std::move(steps), std::move(placement), members, std::string(name),
                                      std::move(links));
  }

  at::Tensor buffer(at::IntArrayRef sizes, at::ScalarType dtype) override {
    return inside_ == nullptr ? at::Tensor() : inside_->buffer(sizes, dtype);
  }
  void note(std::string_view during) override {
    if (inside_ != nullptr) inside_->note(during);
  }
  void abort(std::string_view reason) override { bridge_->fail(reason); }
  std::string failure() override { return bridge_->failure(); }

  void close() override {
    if (closed_.exchange(true)) return;
    const std::vector<std::shared_ptr<Steps>> all = steps();
    finish(all);
    bridge_->stop();
    if (inside_ != nullptr) inside_->close();
    between_->close();
    for (const auto& each : all) each->close();
  }

  double wait_seconds() const override {
    double seconds = between_->wait_seconds() + (inside_ == nullptr ? 0 : inside_->wait_seconds());
    for (const auto& each : steps()) seconds += static_cast<double>(each->waited_ns - each->thread_waited_ns) * 1e-9;
    return std::max(seconds, 0.0);
  }
  std::int64_t bytes_sent() const override {
    return between_->bytes_sent() + (inside_ == nullptr ? 0 : inside_->bytes_sent());
  }

 private:
  std::shared_ptr<Communicator> connect_inside(const std::vector<std::int64_t>& members, std::string_view name,
                                               std::uint64_t context) {
    std::vector<std::int64_t> numbers;
    for (const std::int64_t member : members)
      numbers.push_back(std::ranges::find(ranks_here_, member) - ranks_here_.begin());
    return inside_->connect(RankSet::of(numbers), name, context);
  }

  std::vector<std::shared_ptr<Steps>> steps() const {
    const std::lock_guard lock(mutex_);
    return steps_;
  }

  // What others wait for is done first; what is not done by then ends the world, since they would wait in vain.
  void finish(const std::vector<std::shared_ptr<Steps>>& all) {
    const auto deadline = Clock::now() + (std::uncaught_exceptions() == 0 ? timeout_ : std::chrono::milliseconds(0));
    for (const auto& each : all) {
      if (drain(*each, deadline)) continue;
      const std::string name = each->under_way();
      bridge_->fail(
          fmt::format("rank {} closed its world before {} was done{}", rank_, name, each->describe_wait(name)));
    }
  }

  bool drain(Steps& steps, Clock::time_point deadline) const {
    constexpr std::chrono::milliseconds kPause{100}, kToFail{1000};
    while (!steps.drain(std::min(deadline, Clock::now() + kPause))) {
      if (!bridge_->failure().empty()) return steps.drain(Clock::now() + kToFail);
      if (Clock::now() >= deadline) return false;
    }
    return true;
  }

  const std::int64_t rank_;
  const std::vector<std::int64_t> host_of_rank_;
  const std::string host_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<Transport> inside_;
  const std::shared_ptr<Transport> between_;
  const std::shared_ptr<Bridge> bridge_;
  const std::vector<std::int64_t> ranks_here_;  // world ranks
  std::atomic<bool> closed_ = false;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Steps>> steps_;
};

}  // namespace
}  // namespace hierarchical

std::shared_ptr<Transport> make_hierarchical_transport(const std::shared_ptr<C10dStore>& store, std::int64_t rank,
                                                       std::span<const std::int64_t> host_of_rank, HostOptions host,
                                                       GlooOptions gloo) {
  const std::int64_t host_number = host_of_rank[static_cast<std::size_t>(rank)];
  host.world_ranks = hierarchical::ranks_on(host_of_rank, host_number);
  if (!host.postmortem.empty()) host.postmortem += "." + host.host;
  gloo.timeout = host.timeout;
  std::shared_ptr<Transport> inside;
  if (host.world_ranks.size() > 1) {
    const auto own = store->below(fmt::format("host {}", host_number));
    const auto number = std::ranges::find(host.world_ranks, rank) - host.world_ranks.begin();
    inside = make_host_transport(*own, number, std::ssize(host.world_ranks), host);
  }
  return std::make_shared<hierarchical::HierarchicalTransport>(
      rank, host_of_rank, host.host, host.timeout, std::move(inside),
      make_gloo_transport(store, rank, std::ssize(host_of_rank), gloo));
}

std::vector<std::shared_ptr<Transport>> make_hierarchical_transports_for_threads(
    std::span<const std::int64_t> host_of_rank, const HostOptions& host) {
  const auto size = std::ssize(host_of_rank);
  const auto between = make_gloo_transports_for_threads(size, {.timeout = host.timeout});
  std::vector<std::shared_ptr<Transport>> transports(static_cast<std::size_t>(size));
  for (std::int64_t rank = 0; rank < size; ++rank) {
    const std::int64_t number = host_of_rank[static_cast<std::size_t>(rank)];
    HostOptions options = host;
    options.world_ranks = hierarchical::ranks_on(host_of_rank, number);
    options.host = fmt::format("host {}", number);
    if (!options.postmortem.empty()) options.postmortem += "." + options.host;
    if (options.world_ranks.front() != rank) continue;  // the first one's turn makes all of a host
    std::vector<std::shared_ptr<Transport>> inside(1);
    const auto count = std::ssize(options.world_ranks);
    if (count > 1) inside = make_host_transports_for_threads(count, options);
    for (std::size_t i = 0; i < options.world_ranks.size(); ++i) {
      const auto member = static_cast<std::size_t>(options.world_ranks[i]);
      transports[member] = std::make_shared<hierarchical::HierarchicalTransport>(
          options.world_ranks[i], host_of_rank, options.host, host.timeout, std::move(inside[i]), between[member]);
    }
  }
  return transports;
}

}  // namespace espalier::detail
