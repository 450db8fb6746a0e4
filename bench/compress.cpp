// SPDX-License-Identifier: Apache-2.0
// The 1-bit all-reduce: compressing (error added, norm, signs packed, new error) against the same arithmetic as chains
// of LibTorch operations, one thread, rounds alternating; then the whole compressed mean of 2 ranks against an fp32
// all-reduce over each backend. Ranks are threads. Medians of wall time, and of the ratio of each round. As a rank of a
// launcher's world: the mean over that world alone.
//   compress [MiB] [rounds]
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include "bench/command_line.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/parallel/compress/compressed_all_reduce.hpp"
#include "espalier/parallel/compress/kernels.hpp"

namespace esp = espalier;
using Clock = std::chrono::steady_clock;

namespace {

double ms_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Compressed {
  at::Tensor bits, error;
};

at::Tensor pack(const at::Tensor& positive) {
  static_assert(esp::detail::kBitsPerByte == 8);
  const at::Tensor weights = at::tensor({128, 64, 32, 16, 8, 4, 2, 1}, at::kByte);
  return positive.view({-1, 8}).to(at::kByte).mul_(weights).sum(1, false, at::kByte);
}

// As the definition reads, an operation a line.
Compressed chain_as_defined(const at::Tensor& values, const at::Tensor& error) {
  const at::Tensor sum = values + error;
  const double scale = sum.norm().item<double>() / std::sqrt(static_cast<double>(sum.numel()));
  const at::Tensor positive = sum.sign().add_(1).to(at::kBool);
  const at::Tensor signs = positive.to(at::kFloat).mul_(2).sub_(1);
  return {pack(positive), sum - signs.mul_(scale)};
}

// With the fewest operations, in place where that is possible.
Compressed shortest_chain(const at::Tensor& values, const at::Tensor& error) {
  at::Tensor sum = values + error;
  const double scale = sum.norm().item<double>() / std::sqrt(static_cast<double>(sum.numel()));
  const at::Tensor positive = sum.ge(0);
  sum.sub_(at::where(positive, at::scalar_tensor(scale, at::kFloat), at::scalar_tensor(-scale, at::kFloat)));
  return {pack(positive), sum};
}

// Returns the new scale. The error is formed as the elements are read, from `scale`.
float fused(const at::Tensor& values, at::Tensor& elements, float scale, at::Tensor& bits) {
  const auto kernels = esp::detail::compress_kernels<float>(esp::detail::KernelKind::fastest);
  const double squares = kernels.compress(values.const_data_ptr<float>(), elements.mutable_data_ptr<float>(), scale,
                                          bits.mutable_data_ptr<std::uint8_t>(), values.numel());
  return static_cast<float>(std::sqrt(squares / static_cast<double>(values.numel())));
}

void compression(std::int64_t count, int rounds) {
  const at::Tensor values = at::randn({count}), start = at::randn({count});
  at::Tensor elements = start.clone(), bits = at::empty({count / 8}, at::kByte);
  float scale = fused(values, elements, 0.0f, bits);
  const Compressed expected = chain_as_defined(values, start);
  const at::Tensor error = at::where(elements.ge(0), elements - scale, elements + scale);
  const double missed = (expected.error - error).abs().max().item<double>();
  fmt::print("largest difference of the errors {:.1e}, bytes {}\n", missed,
             bits.equal(expected.bits) ? "equal" : "DIFFERENT");

  std::vector<double> ours, defined, shortest, ratio_defined, ratio_shortest;
  for (int round = -1; round < rounds; ++round) {
    const double a = ms_of([&] { scale = fused(values, elements, scale, bits); });
    const double b = ms_of([&] { chain_as_defined(values, start); });
    const double c = ms_of([&] { shortest_chain(values, start); });
    if (round < 0) continue;
    ours.push_back(a);
    defined.push_back(b);
    shortest.push_back(c);
    ratio_defined.push_back(b / a);
    ratio_shortest.push_back(c / a);
  }
  fmt::print(
      "fused kernels      {:9.2f} ms\nchain as defined   {:9.2f} ms  ratio {:.1f}\nshortest chain     {:9.2f} ms  ratio {:.1f}\n",
      median(ours), median(defined), median(ratio_defined), median(shortest), median(ratio_shortest));
}

// Rank 0 prints.
void means(const esp::World& world, std::int64_t count, int rounds) {
  std::vector<double> compressed_ms, plain_ms, ratios;
  esp::CompressedAllReduce compressed(world.group(), count, at::kFloat);
  at::Tensor tensor = at::ones({count}), other = at::ones({count});
  for (int round = -1; round < rounds; ++round) {
    esp::barrier(world.group()).wait();
    const double a = ms_of([&] {
      compressed.mean_(tensor);
      esp::barrier(world.group()).wait();
    });
    const double b = ms_of([&] {
      esp::all_reduce_(other, world.group(), esp::ReduceOp::mean).wait();
      esp::barrier(world.group()).wait();
    });
    if (round < 0) continue;
    compressed_ms.push_back(a);
    plain_ms.push_back(b);
    ratios.push_back(b / a);
  }
  if (world.rank() != 0) return;
  fmt::print("{:<5} compressed {:9.2f} ms, {} bytes a rank; fp32 all-reduce {:9.2f} ms, ratio {:.2f}\n",
             esp::to_string(world.backend()), median(compressed_ms), compressed.bytes_sent() / (rounds + 1),
             median(plain_ms), median(ratios));
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t mib = 64;
  int rounds = 11;
  CLI::App app("The 1-bit all-reduce: its kernels, and the mean of 2 ranks or of a launcher's.", "bench_compress");
  app.add_option("MiB", mib, "Of float32")->check(CLI::Range(1, 65536))->capture_default_str();
  app.add_option("rounds", rounds, "Of which the median is taken")->check(CLI::PositiveNumber)->capture_default_str();
  return esp::bench::run(app, argc, argv, [&] {
    const std::int64_t count = (mib << 20) / 4;
    at::set_num_threads(1);
    const auto world = esp::World::from_environment();
    if (world.rank() == 0) fmt::print("{} MiB of float32, {} rounds, medians\n", mib, rounds);
    if (world.size() > 1) return means(world, count, rounds);
    fmt::print("\ncompression\n");
    compression(count, rounds);
    fmt::print("\nmean over 2 ranks\n");
    for (const esp::Backend backend : {esp::Backend::gloo, esp::Backend::host}) {
      esp::run_ranks(2, [&](esp::World& threads) { means(threads, count, rounds); }, {.backend = backend});
    }
  });
}
