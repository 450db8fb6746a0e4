// SPDX-License-Identifier: Apache-2.0
// What it takes to make all families of a layout live on ranks that are processes of one host: over
// host and gloo, agreement included, and with one group of c10d's Gloo for each list of ranks that
// differs from the others, which c10d does not agree on first. Where MPI started the ranks, also over
// mpi, and with one communicator of MPI for each list. Rounds alternate; times are of the slowest
// rank, requests those of the rank with the most. Then what one rank's groups cost in large worlds.
//   espalier run [--backend mpi] -n 16 -- bench_groups [layout] [rounds]
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#if ESPALIER_WITH_MPI
#include <mpi.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/command_line.hpp"
#include "espalier/base/error.hpp"
#include "espalier/comm/backends/c10d/gloo.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"
#include "espalier/comm/backends/mpi/mpi.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/group_set.hpp"
#include "espalier/comm/rendezvous.hpp"
#include "espalier/comm/world_state.hpp"
#include "espalier/plan/groups/named_plans.hpp"

namespace esp = espalier;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

// Another store, and how many requests it got from this rank.
class CountingStore final : public c10d::Store {
 public:
  using Count = std::shared_ptr<std::atomic<std::int64_t>>;
  using Bytes = std::vector<std::uint8_t>;

  CountingStore(c10::intrusive_ptr<c10d::Store> store, Count count)
      : store_(std::move(store)), count_(std::move(count)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<CountingStore>(store_->clone(), count_);
  }
  void set(const std::string& key, const Bytes& value) override { counted()->set(key, value); }
  Bytes compareSet(const std::string& key, const Bytes& old, const Bytes& value) override {
    return counted()->compareSet(key, old, value);
  }
  Bytes get(const std::string& key) override { return counted()->get(key); }
  std::int64_t add(const std::string& key, std::int64_t value) override { return counted()->add(key, value); }
  bool deleteKey(const std::string& key) override { return counted()->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return counted()->check(keys); }
  std::int64_t getNumKeys() override { return counted()->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { counted()->wait(keys); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    counted()->wait(keys, timeout);
  }
  const milliseconds& getTimeout() const noexcept override { return store_->getTimeout(); }
  void setTimeout(const milliseconds& timeout) override { store_->setTimeout(timeout); }
  void append(const std::string& key, const Bytes& value) override { counted()->append(key, value); }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override { return counted()->multiGet(keys); }
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override {
    counted()->multiSet(keys, values);
  }
  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }

 private:
  const c10::intrusive_ptr<c10d::Store>& counted() {
    count_->fetch_add(1);
    return store_;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  Count count_;
};

// One rank's view of the bench: the world that all rounds meet in, and the store of their groups.
struct Bench {
  const esp::World& control;
  const esp::GroupPlan plan;
  c10::intrusive_ptr<c10d::Store> store;
  CountingStore::Count requests;
  std::int64_t num_worlds = 0;

  std::shared_ptr<esp::detail::C10dStore> next_store() {
    const std::string prefix = fmt::format("round/{}", num_worlds++);
    return std::make_shared<esp::detail::C10dStore>(c10::make_intrusive<c10d::PrefixStore>(prefix, store));
  }

  double largest(double value) const {
    at::Tensor tensor = at::full({1}, value, at::kDouble);
    all_reduce_(tensor, control.group(), esp::ReduceOp::max).wait();
    return *tensor.const_data_ptr<double>();
  }

  // Of the slowest rank; all begin together.
  double ms_of(const std::function<void()>& work) const {
    barrier(control.group()).wait();
    const auto begin = Clock::now();
    work();
    return largest(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
};

struct Costs {
  double make_ms = 0.0;
  double first_use_ms = 0.0;
  double requests = 0.0;
};

Costs espalier_groups(Bench& bench, const esp::GroupPlan& plan, esp::Backend backend) {
  const auto store = bench.next_store();
  const std::int64_t rank = bench.control.rank(), size = bench.control.size();
  const auto transport = backend == esp::Backend::mpi    ? esp::detail::join_mpi().transport
                         : backend == esp::Backend::host ? esp::detail::make_host_transport(*store, rank, size)
                                                         : esp::detail::make_gloo_transport(store, rank, size);
  esp::detail::Place place = bench.control.state().core->place;
  place.backend = backend;
  const esp::World world = esp::detail::make_world(place, transport, {.backend = backend, .log = nullptr});
  Costs costs;
  std::optional<esp::GroupSet> groups;
  const std::int64_t before = bench.requests->load();
  costs.make_ms = bench.ms_of([&] { groups.emplace(world, plan); });
  costs.requests = bench.largest(static_cast<double>(bench.requests->load() - before));
  costs.first_use_ms = bench.ms_of([&] { groups->warm_up(milliseconds(60'000)); });
  barrier(bench.control.group()).wait();  // nobody closes before all have measured
  return costs;
}

Costs c10d_groups(Bench& bench, const esp::GroupPlan& plan) {
  using c10d::ProcessGroupGloo;
  const auto store = bench.next_store();
  const std::int64_t rank = bench.control.rank();
  Costs costs;
  std::vector<c10::intrusive_ptr<ProcessGroupGloo>> groups;
  const std::int64_t before = bench.requests->load();
  costs.make_ms = bench.ms_of([&] {
    for (const std::int64_t index : plan.communicators_of(rank, bench.control.size())) {
      const esp::PlannedGroup planned = plan.group(index);
      auto options = ProcessGroupGloo::Options::create(milliseconds(60'000));
      options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      groups.push_back(c10::make_intrusive<ProcessGroupGloo>(
          c10::make_intrusive<c10d::PrefixStore>(planned.name, store->c10d_store()),
          static_cast<int>(*planned.ranks.index_of(rank)), static_cast<int>(planned.ranks.size()), options));
    }
  });
  costs.requests = bench.largest(static_cast<double>(bench.requests->load() - before));
  costs.first_use_ms = bench.ms_of([&] {
    for (const auto& group : groups) {
      std::vector<at::Tensor> tensors{at::full({1}, 1.0f)};
      group->allreduce(tensors)->wait();
    }
  });
  barrier(bench.control.group()).wait();
  return costs;
}

#if ESPALIER_WITH_MPI
// MPI runs already: a way over espalier's mpi comes first.
Costs mpi_groups(Bench& bench, const esp::GroupPlan& plan) {
  Costs costs;
  std::vector<MPI_Comm> groups;
  costs.make_ms = bench.ms_of([&] {
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    for (const std::int64_t index : plan.communicators_of(bench.control.rank(), bench.control.size())) {
      std::vector<int> ranks;
      for (const std::int64_t member : plan.group(index).ranks.to_vector()) ranks.push_back(static_cast<int>(member));
      MPI_Group members = MPI_GROUP_NULL;
      MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members);
      MPI_Comm_create_group(MPI_COMM_WORLD, members, static_cast<int>(index), &groups.emplace_back(MPI_COMM_NULL));
      MPI_Group_free(&members);
    }
    MPI_Group_free(&all);
  });
  costs.first_use_ms = bench.ms_of([&] {
    for (const MPI_Comm group : groups) {
      float value = 1;
      MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_FLOAT, MPI_SUM, group);
    }
  });
  for (MPI_Comm& group : groups) MPI_Comm_free(&group);
  return costs;
}
#endif

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Way {
  std::string name;
  std::function<Costs(const esp::GroupPlan&)> run;
  std::vector<Costs> rounds = {};
  Costs of_one_family = {};

  double median_of(double Costs::* field) const {
    std::vector<double> values;
    for (const Costs& each : rounds) values.push_back(each.*field);
    return median(values);
  }
};

void live_groups(Bench& bench, int rounds) {
  std::vector<Way> ways{
      {"espalier, host", [&](const auto& plan) { return espalier_groups(bench, plan, esp::Backend::host); }},
      {"espalier, gloo", [&](const auto& plan) { return espalier_groups(bench, plan, esp::Backend::gloo); }},
      {"c10d Gloo", [&](const auto& plan) { return c10d_groups(bench, plan); }}};
#if ESPALIER_WITH_MPI
  if (const auto variable = std::getenv("ESPALIER_BACKEND");
      variable != nullptr && variable == std::string_view("mpi")) {
    ways.push_back(
        {"espalier, mpi", [&](const auto& plan) { return espalier_groups(bench, plan, esp::Backend::mpi); }});
    ways.push_back({"MPI", [&](const auto& plan) { return mpi_groups(bench, plan); }});
  }
#endif
  esp::GroupPlan one_family(bench.control.size());
  const std::int64_t first = bench.plan.communicators_of(bench.control.rank(), bench.control.size()).front();
  const std::string name = bench.plan.group(first).name;
  for (std::int64_t i = 0; i < bench.plan.size(); ++i) {
    const esp::PlannedGroup group = bench.plan.group(i);
    if (group.name.starts_with(name.substr(0, name.find('[') + 1))) one_family.add("only", group.ranks);
  }
  for (Way& way : ways) way.of_one_family = way.run(one_family);  // also warms up
  for (int round = 0; round < rounds; ++round)
    for (Way& way : ways) way.rounds.push_back(way.run(bench.plan));
  if (bench.control.rank() != 0) return;
  fmt::print("{:<16}{:>12}{:>14}{:>10}{:>22}\n", "", "to make", "at first use", "ratio", "store requests a rank");
  const Way& host = ways.front();
  for (const Way& way : ways) {
    const double make_ms = way.median_of(&Costs::make_ms);
    fmt::print("{:<16}{:>9.3f} ms{:>11.3f} ms{:>10.1f}{:>13.0f}, one family {:.0f}\n", way.name, make_ms,
               way.median_of(&Costs::first_use_ms), make_ms / host.median_of(&Costs::make_ms),
               way.median_of(&Costs::requests), way.of_one_family.requests);
  }
}

void groups_of_large_worlds() {
  fmt::print("\none rank's groups of all families, of pipe=2,data=rest,tensor=2\n");
  for (const int log2_size : {10, 16, 20}) {
    const std::int64_t size = std::int64_t{1} << log2_size;
    const esp::Layout layout({.pipe = 2, .data = esp::kRest, .tensor = 2}, size);
    constexpr int kRepetitions = 20'000;
    std::int64_t rank = 0, members = 0;
    const auto begin = Clock::now();
    for (int i = 0; i < kRepetitions; ++i) {
      rank = (rank + 7919) % size;
      for (const std::string_view family : layout.families()) members += layout.group(family, rank).size();
    }
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / kRepetitions;
    fmt::print("2^{} ranks: {:.2f} us, {} bytes, {:.0f} members in {} groups\n", log2_size, us,
               layout.families().size() * sizeof(esp::RankSet), static_cast<double>(members) / kRepetitions,
               layout.families().size());
  }
}

// Served by rank 0 at a free port.
c10::intrusive_ptr<c10d::Store> make_store(const esp::World& control) {
  c10::intrusive_ptr<c10d::TCPStore> server;
  at::Tensor port = at::full({1}, 0, at::kLong);
  c10d::TCPStoreOptions options;
  options.waitWorkers = false;
  if (control.rank() == 0) {
    options.isServer = true;
    options.port = 0;
    server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    port.fill_(static_cast<std::int64_t>(server->getPort()));
  }
  broadcast_(port, control.group(), 0).wait();
  if (server) return server;
  options.port = static_cast<std::uint16_t>(*port.const_data_ptr<std::int64_t>());
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

void run(const std::string& layout_text, int rounds) {
  const esp::World control = esp::World::from_environment({.backend = esp::Backend::host, .log = nullptr});
  const esp::Layout layout(esp::Layout::parse(layout_text), control.size());
  if (control.size() == 1) throw esp::ConfigError("bench_groups: one rank; start it with espalier run -n 16");
  auto requests = std::make_shared<std::atomic<std::int64_t>>(0);
  Bench bench{control, layout_plan(layout), c10::make_intrusive<CountingStore>(make_store(control), requests),
              requests};
  if (control.rank() == 0) {
    fmt::print("{} ranks, {}: {} families; {} communicators a rank; medians of {} rounds\n\n", control.size(),
               layout.to_string(), layout.families().size(), bench.plan.communicators_of(0, control.size()).size(),
               rounds);
  }
  if (bench.plan.communicators_of(control.rank(), control.size()).empty())
    throw esp::ConfigError("bench_groups: " + layout.to_string() + " has no groups besides the world; take two axes");
  live_groups(bench, rounds);
  if (control.rank() == 0) groups_of_large_worlds();
  barrier(control.group()).wait();
}

}  // namespace

int main(int argc, char** argv) {
  std::string layout = "pipe=2,data=4,tensor=2";
  int rounds = 21;
  CLI::App app("What it takes to make all groups of a layout, on the ranks of a launcher.", "bench_groups");
  app.add_option("layout", layout, "Whose groups")->capture_default_str();
  app.add_option("rounds", rounds, "Of which the median is taken")->check(CLI::PositiveNumber)->capture_default_str();
  return esp::bench::run(app, argc, argv, [&] { run(layout, rounds); });
}
