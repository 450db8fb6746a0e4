// SPDX-License-Identifier: Apache-2.0
// Collectives over gloo and over hierarchical in turn: rank 0's medians of time, and how many bytes the network
// interface of its host sent and received meanwhile. For 2 hosts; bench/slow_link starts it on two that it makes.
// Usage: bench_hierarchical [MiB] [rounds] [interface]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "bench/command_line.hpp"
#include "espalier/base/check.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/world.hpp"

namespace {

namespace esp = espalier;

std::int64_t bytes_over(const std::string& interface) {
  std::int64_t sum = 0;
  for (const char* direction : {"tx_bytes", "rx_bytes"}) {
    std::int64_t bytes = -1;
    std::ifstream("/sys/class/net/" + interface + "/statistics/" + direction) >> bytes;
    ESPALIER_CHECK_CONFIG(bytes >= 0, "bench_hierarchical: no interface '{}' here; name the one between the hosts",
                          interface);
    sum += bytes;
  }
  return sum;
}

struct Measured {
  std::vector<double> ms;
  std::vector<double> mib;
};

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

void run(std::int64_t mib, std::int64_t rounds, const std::string& interface) {
  std::vector<esp::World> worlds;
  for (const esp::Backend backend : {esp::Backend::gloo, esp::Backend::hierarchical}) {
    worlds.push_back(esp::World::from_environment({.backend = backend, .log = nullptr}));
  }
  const std::int64_t size = worlds.front().size(), count = mib * 262144 / size * size;
  at::Tensor whole = at::zeros({count}), part = at::zeros({count / size});
  const std::vector<std::pair<std::string, std::function<esp::Work(const esp::Group&)>>> operations{
      {"all_reduce", [&](const esp::Group& group) { return esp::all_reduce_(whole, group); }},
      {"reduce_scatter", [&](const esp::Group& group) { return esp::reduce_scatter_into(part, whole, group); }},
      {"all_gather", [&](const esp::Group& group) { return esp::all_gather_into(whole, part, group); }}};
  for (const auto& [name, operation] : operations) {
    std::vector<Measured> measured(worlds.size());
    for (std::int64_t round = 0; round <= rounds; ++round) {  // the first one connects and warms up
      for (std::size_t i = 0; i < worlds.size(); ++i) {
        const esp::Group& group = worlds[i].group();
        esp::barrier(group).wait();
        const std::int64_t before = bytes_over(interface);
        const auto start = std::chrono::steady_clock::now();
        operation(group).wait();
        const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
        esp::barrier(group).wait();
        if (round == 0) continue;
        measured[i].ms.push_back(ms);
        measured[i].mib.push_back(static_cast<double>(bytes_over(interface) - before) / (1 << 20));
      }
    }
    if (worlds.front().rank() != 0) continue;
    for (std::size_t i = 0; i < worlds.size(); ++i) {
      fmt::print("{:<15}{:<14}{:>4} MiB, {} ranks: {:9.1f} ms {:8.1f} MiB over {}\n", name,
                 to_string(worlds[i].backend()), mib, size, median(measured[i].ms), median(measured[i].mib), interface);
    }
    fmt::print("{:<15}{:<14}{:>26.2f} times {:6.2f} times\n", "", "gloo's",
               median(measured[0].ms) / median(measured[1].ms), median(measured[0].mib) / median(measured[1].mib));
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t mib = 16, rounds = 3;
  std::string interface = "eth0";
  CLI::App app("Collectives over gloo and over hierarchical in turn, on ranks of two hosts.", "bench_hierarchical");
  app.add_option("MiB", mib, "Of float32")->check(CLI::Range(1, 65536))->capture_default_str();
  app.add_option("rounds", rounds, "Of which the median is taken")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("interface", interface, "Whose bytes are counted")->capture_default_str();
  return esp::bench::run(app, argc, argv, [&] {
    at::set_num_threads(1);
    run(mib, rounds, interface);
  });
}
