// SPDX-License-Identifier: Apache-2.0
// What it costs one rank to know its own groups of all families, by the size of the world: time,
// bytes of the rank sets, and heap allocations.
#include "espalier/plan/layout/layout.hpp"

#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> allocations{0};

}  // namespace

// Not inlined: GCC would take malloc and operator delete for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}

[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

void own_groups(benchmark::State& state) {
  const std::int64_t world = std::int64_t{1} << state.range(0);
  const espalier::Layout layout(
      {.pipe = 8, .data = espalier::kRest, .context = 2, .tensor = 8, .expert = 16, .expert_tensor = 1}, world);
  std::int64_t rank = 0;
  const std::int64_t before = allocations.load();
  for (auto step : state) {
    rank = (rank + 7919) % world;  // a prime: visits all ranks
    for (std::string_view family : layout.families()) benchmark::DoNotOptimize(layout.group(family, rank));
  }
  const std::size_t families = layout.families().size();
  state.counters["families"] = static_cast<double>(families);
  state.counters["bytes"] = static_cast<double>(families * sizeof(espalier::RankSet));
  state.counters["allocations"] = static_cast<double>(allocations.load() - before);
}
BENCHMARK(own_groups)->ArgName("log2_world")->Arg(10)->Arg(16)->Arg(20);

// Making the layout itself, checks included.
void make_layout(benchmark::State& state) {
  for (auto step : state) {
    benchmark::DoNotOptimize(espalier::Layout(
        {.pipe = 8, .data = espalier::kRest, .context = 2, .tensor = 8, .expert = 16, .expert_tensor = 1}, 1 << 20));
  }
}
BENCHMARK(make_layout);

}  // namespace

BENCHMARK_MAIN();
