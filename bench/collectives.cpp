// SPDX-License-Identifier: Apache-2.0
// all_reduce and send/recv over host and over gloo, in alternating rounds of one run, so that both see the same machine.
// Every result is checked. Medians of wall time; a time is that of the slowest rank; tensors are float32.
//   espalier run -n RANKS -- bench_collectives [rounds] [KiB...]
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "espalier/comm/collectives.hpp"
#include "espalier/comm/world.hpp"

namespace esp = espalier;
using Clock = std::chrono::steady_clock;

namespace {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// In place, so every call multiplies a tensor of ones by the number of ranks.
void all_reduce(const esp::Group& group, at::Tensor& tensor) { esp::all_reduce_(tensor, group).wait(); }

// Between ranks 0 and 1, there and back.
void ping_pong(const esp::Group& group, at::Tensor& tensor) {
  if (group.rank() == 0) {
    esp::send(tensor, group, 1).wait();
    esp::recv(tensor, group, 1).wait();
  } else if (group.rank() == 1) {
    esp::recv(tensor, group, 0).wait();
    esp::send(tensor, group, 0).wait();
  }
}

using Operation = void (*)(const esp::Group&, at::Tensor&);

// Microseconds of one of `calls` calls on the slowest rank.
double measure(Operation operation, const esp::World& world, at::Tensor& tensor, std::int64_t calls) {
  const esp::Group& group = world.group();
  tensor.fill_(operation == all_reduce ? 1 : world.rank());
  esp::barrier(group).wait();
  const auto start = Clock::now();
  for (std::int64_t call = 0; call < calls; ++call) operation(group, tensor);
  const std::chrono::duration<double, std::micro> took = Clock::now() - start;
  double expected = 1;
  for (std::int64_t call = 0; call < calls; ++call) expected *= static_cast<double>(group.size());
  if (operation == ping_pong) expected = world.rank() == 1 ? 0 : static_cast<double>(world.rank());
  if (!tensor.eq(expected).all().item<bool>()) throw std::runtime_error("wrong result");
  at::Tensor slowest = at::full({1}, took.count() / static_cast<double>(calls), at::kDouble);
  esp::all_reduce_(slowest, group, esp::ReduceOp::max).wait();
  return slowest.item<double>();
}

void compare(const char* name, Operation operation, const esp::World& host, const esp::World& gloo, std::int64_t kib,
             std::int64_t rounds) {
  at::Tensor tensor = at::empty({kib * 256});
  // As many powers of the number of ranks as float32 can hold.
  const auto most = 120 / std::bit_width(static_cast<std::uint64_t>(host.size() - 1));
  const std::int64_t calls = std::clamp<std::int64_t>(16 * 1024 / kib, 1, most);
  measure(operation, host, tensor, 1);
  measure(operation, gloo, tensor, 1);
  std::vector<double> host_us, gloo_us, ratios;
  for (std::int64_t round = 0; round < rounds; ++round) {
    host_us.push_back(measure(operation, host, tensor, calls));
    gloo_us.push_back(measure(operation, gloo, tensor, calls));
    ratios.push_back(gloo_us.back() / host_us.back());
  }
  if (host.rank() != 0) return;
  const std::string size = kib >= 1024 ? fmt::format("{} MiB", kib / 1024) : fmt::format("{} KiB", kib);
  fmt::print("| {} | {} | {} | {:.1f} | {:.1f} | {:.1f} |\n", name, host.size(), size, median(host_us), median(gloo_us),
             median(ratios));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::int64_t rounds = argc > 1 ? std::stoll(argv[1]) : 11;
  std::vector<std::int64_t> sizes_kib{1, 16, 256, 1 << 10, 16 << 10, 64 << 10};
  if (argc > 2) {
    sizes_kib.clear();
    for (int i = 2; i < argc; ++i) sizes_kib.push_back(std::stoll(argv[i]));
  }
  const auto host = esp::World::from_environment({.backend = esp::Backend::host});
  if (host.size() == 1) {
    fmt::print(stderr, "bench_collectives: needs 2 ranks or more: espalier run -n 2 -- bench_collectives\n");
    return 2;
  }
  const auto gloo = esp::World::from_environment({.backend = esp::Backend::gloo});
  if (host.rank() == 0) {
    fmt::print("| operation | ranks | size | host us | gloo us | gloo / host |\n|---|---|---|---|---|---|\n");
  }
  for (const std::int64_t kib : sizes_kib) {
    compare("all_reduce", all_reduce, host, gloo, kib, rounds);
    compare("ping-pong", ping_pong, host, gloo, kib, rounds);
  }
  return 0;
}
