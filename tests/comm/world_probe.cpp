// SPDX-License-Identifier: Apache-2.0
// A rank for tests of World::from_environment: joins the world as its environment says, does what
// it is told, prints what it got. Errors end it as they end the command's ranks.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "espalier/base/error.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/group_set.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/plan/groups/model_data.hpp"
#include "tests/comm/live_plans.hpp"

namespace {

int end(const char* kind, const std::exception& error, int code) {
  fmt::print("{}: {}\n", kind, error.what());
  std::fflush(stdout);
  return code;
}

// Rank 2 dies where the others make their groups, before or after they agreed.
void die_among_groups(espalier::World& world, bool after_agreement) {
  const espalier::GroupPlan plan = espalier::model_data_plan(world.size(), 2);
  if (world.rank() == 2 && after_agreement) espalier::agree(world.group(), "group plan", plan.describe());
  if (world.rank() == 2) std::raise(SIGKILL);
  const espalier::GroupSet groups(world, plan);
  groups.warm_up(std::chrono::seconds(20));
  espalier::barrier(world.group()).wait();  // who shares no group with rank 2 learns of it here
}

void run(const std::string& what, std::chrono::milliseconds timeout) {
  espalier::WorldOptions options;
  options.timeout = timeout;
  if (what == "plans" || what.starts_with("die_")) {
    options.log = nullptr;
    espalier::World world = espalier::World::from_environment(options);
    if (what == "plans") return espalier::testing_support::use_every_plan(world);
    return die_among_groups(world, what == "die_after_agreement");
  }
  const int worlds = what == "worlds" ? 20 : 1;
  for (int i = 0; i < worlds; ++i) {
    const espalier::World world = espalier::World::from_environment(options);
    at::Tensor sum = at::full({3}, double(world.rank() + 1));
    espalier::all_reduce_(sum, world.group()).wait();
    if (i == 0)
      fmt::print("rank {} of {} local {} of {} {} {} sum {}\n", world.rank(), world.size(), world.local_rank(),
                 world.local_size(), to_string(world.backend()), world.launcher(), sum[2].item<float>());
    std::fflush(stdout);
    if (what == "die" && world.rank() == 1) std::abort();
    if (what == "die" || what == "wait") {
      at::Tensor more = at::zeros({1});
      while (true) espalier::all_reduce_(more, world.group()).wait();
    }
    if (what == "leave") {  // rank 0 sends and goes, the others receive late
      at::Tensor big = at::full({1 << 20}, 7.0);
      if (world.rank() == 0)
        for (std::int64_t to = 1; to < world.size(); ++to) espalier::send(big, world.group(), to).wait();
      if (world.rank() == 0) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      big.zero_();
      espalier::recv(big, world.group(), 0).wait();
      fmt::print("received {}\n", big.sum().item<double>() / (1 << 20));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  try {
    run(argc > 1 ? argv[1] : "", std::chrono::milliseconds(argc > 2 ? std::stoi(argv[2]) : 20000));
    return 0;
  } catch (const espalier::ConfigError& error) {
    return end("ConfigError", error, 2);
  } catch (const espalier::CommError& error) {
    return end("CommError", error, 3);
  } catch (const std::exception& error) {
    return end("defect", error, 4);
  }
}
