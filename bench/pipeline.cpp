// SPDX-License-Identifier: Apache-2.0
// What the pipeline's executor costs: microseconds an instruction with layers that do nothing, and a step's time over
// its schedule's bound with layers that sleep (forward 10 ms, backward 20 ms). Ranks are threads.
//   pipeline [rounds]
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "bench/command_line.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/parallel/pipeline/executor.hpp"
#include "espalier/plan/schedule/schedules.hpp"
#include "espalier/plan/schedule/simulate.hpp"

namespace esp = espalier;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds kForward{10}, kBackward{20};

struct Sleep : torch::autograd::Function<Sleep> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    std::this_thread::sleep_for(kForward);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(kBackward);
    return gradients;
  }
};

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Median milliseconds of a step over `rounds`, as the slowest rank sees it (all leave a barrier together).
double step_ms(const esp::LayerSpec& layer, const esp::ScheduleKind& kind, std::int64_t stages,
               std::int64_t micro_batches, int rounds) {
  double result = 0.0;
  esp::run_ranks(stages, [&](esp::World& world) {
    const esp::Mesh mesh(world, {.pipe = stages});
    const esp::PipelineModule module(mesh, std::vector<esp::LayerSpec>(stages, layer), {.partition = esp::by_layers()});
    const esp::Schedule schedule = kind.generate(stages, micro_batches);
    const auto source = [](std::int64_t) { return esp::MicroBatch{{at::ones({16}).set_requires_grad(true)}, {}}; };
    const auto loss = [](const esp::Tensors& outputs, const esp::Tensors&) { return outputs[0].sum(); };
    std::vector<double> times;
    for (int round = -1; round < rounds; ++round) {
      esp::barrier(world.group()).wait();
      const auto begin = Clock::now();
      esp::execute(module, schedule, source, loss);
      esp::barrier(world.group()).wait();
      if (round >= 0) times.push_back(ms_since(begin));
    }
    if (world.rank() == 0) result = median(times);
  });
  return result;
}

std::int64_t num_instructions(const esp::Schedule& schedule) {
  std::int64_t count = 0;
  for (const auto& step : schedule.stages.front().steps) count += std::ssize(step);
  return count;
}

void run(int rounds) {
  ::prctl(PR_SET_TIMERSLACK, 1);  // ns, of the threads to come: without it a layer sleeps up to 50 us too long
  constexpr std::int64_t kMicroBatches = 16;
  const auto nothing = esp::function("nothing", [](const at::Tensor& x) { return x.clone(); });
  const auto sleeps = esp::function("sleeps", [](const at::Tensor& x) { return Sleep::apply(x); });
  fmt::print(
      "{} micro-batches, {} rounds, medians\n\nlayers that do nothing\nstages schedule  ms a step  instructions of stage 0  us each\n",
      kMicroBatches, rounds);
  for (const std::int64_t stages : {2, 4, 8}) {
    for (const auto& kind : {esp::one_f_one_b(), esp::gpipe()}) {
      const double ms = step_ms(nothing, kind, stages, kMicroBatches, 20 * rounds);
      const std::int64_t count = num_instructions(kind.generate(stages, kMicroBatches));
      fmt::print("{:>6} {:<8} {:>10.2f} {:>24} {:>8.1f}\n", stages, kind.name, ms, count,
                 1e3 * ms / static_cast<double>(count));
    }
  }
  fmt::print("\nlayers that sleep: forward {} ms, backward {} ms\nstages schedule  ms a step  bound ms  ratio\n",
             kForward.count(), kBackward.count());
  for (const std::int64_t stages : {2, 4, 8}) {
    for (const auto& kind : {esp::one_f_one_b(), esp::gpipe()}) {
      const double ms = step_ms(sleeps, kind, stages, kMicroBatches, rounds);
      const double bound = esp::simulate(kind.generate(stages, kMicroBatches),
                                         {.forward = kForward.count() * 1.0, .backward = kBackward.count() * 1.0})
                               .span;
      fmt::print("{:>6} {:<8} {:>10.2f} {:>9.0f} {:>6.3f}\n", stages, kind.name, ms, bound, ms / bound);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 5;
  CLI::App app("What the pipeline's executor costs, with layers that do nothing and layers that sleep.",
               "bench_pipeline");
  app.add_option("rounds", rounds, "Of which the median is taken")->check(CLI::PositiveNumber)->capture_default_str();
  return esp::bench::run(app, argc, argv, [&] { run(rounds); });
}
