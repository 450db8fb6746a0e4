// SPDX-License-Identifier: Apache-2.0
// An operation that has been posted ends for the others whatever its rank does next. One rank, the busy one, posts it
// and calls nothing more of that world before the others say, in another world, that it has ended for them: so what
// fails stands still until the limit, and what is right takes no longer than the operation.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <optional>
#include <stdexcept>
#include <thread>

#include "espalier/comm/backends/host/host_transport.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/world_state.hpp"
#include "tests/comm/conformance.hpp"
#include "tests/comm/file_store.hpp"
#include "tests/support/temporary_folder.hpp"

namespace espalier::conformance {
namespace progress {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLimit(10'000);
constexpr std::int64_t kCounts[] = {100, 300'003};  // floats: one message, and far more than travels at once

// A world of the same ranks over shared memory, which has nothing in common with theirs.
World another_world(const World& world) {
  std::optional<testing_support::TemporaryFolder> folder;
  at::Tensor path = at::zeros({256}, at::kByte);
  if (world.rank() == 0) {
    folder.emplace();
    folder->path().copy(static_cast<char*>(path.data_ptr()), 255);
  }
  broadcast_(path, world.group(), 0).wait();
  testing_support::FileStore store(static_cast<const char*>(path.const_data_ptr()));
  WorldOptions options;
  options.timeout = kLimit;
  World other =
      detail::make_world({.rank = world.rank(), .size = world.size(), .host = "here", .launcher = "test"},
                         detail::make_host_transport(store, world.rank(), world.size(), {.timeout = kLimit}), options);
  barrier(other.group()).wait();
  return other;
}

at::Tensor data(std::int64_t rank, std::int64_t count) { return (at::arange(count) % 16 + rank).to(at::kFloat); }

std::vector<at::Tensor> data_of_all(const Group& group, std::int64_t count) {
  std::vector<at::Tensor> all;
  for (std::int64_t member = 0; member < group.size(); ++member) all.push_back(data(member, count));
  return all;
}

// An operation under way, and what it gives here; undefined: nothing.
struct Started {
  Work work;
  at::Tensor output{};
  at::Tensor expected{};
};

using Start = std::function<Started(const Group&, std::int64_t count, std::int64_t busy)>;

Started start_all_reduce(const Group& group, std::int64_t count, std::int64_t) {
  at::Tensor tensor = data(group.rank(), count);
  return {all_reduce_(tensor, group), tensor, at::stack(data_of_all(group, count)).sum(0)};
}

Started start_reduce(const Group& group, std::int64_t count, std::int64_t) {
  at::Tensor tensor = data(group.rank(), count);
  const at::Tensor sum = at::stack(data_of_all(group, count)).sum(0);
  return {reduce_(tensor, group, 0), tensor, group.rank() == 0 ? sum : data(group.rank(), count)};
}

Started start_broadcast(const Group& group, std::int64_t count, std::int64_t) {
  at::Tensor tensor = data(group.rank(), count);
  return {broadcast_(tensor, group, 0), tensor, data(0, count)};
}

Started start_all_gather(const Group& group, std::int64_t count, std::int64_t) {
  at::Tensor all = at::zeros({group.size(), count});
  return {all_gather_into(all, data(group.rank(), count), group), all, at::stack(data_of_all(group, count))};
}

Started start_all_gather_v(const Group& group, std::int64_t count, std::int64_t) {
  const std::vector<at::Tensor> all = data_of_all(group, count);
  at::Tensor joined = at::zeros({group.size(), count});
  std::vector<at::Tensor> outputs = joined.unbind();
  return {all_gather_v(outputs, all[static_cast<std::size_t>(group.rank())], group), joined, at::stack(all)};
}

Started start_gather(const Group& group, std::int64_t count, std::int64_t) {
  at::Tensor all;
  if (group.rank() == 0) all = at::zeros({group.size(), count});
  Work work = gather_into(all, data(group.rank(), count), group, 0);
  return {std::move(work), all, group.rank() == 0 ? at::stack(data_of_all(group, count)) : at::Tensor()};
}

Started start_scatter(const Group& group, std::int64_t count, std::int64_t) {
  at::Tensor mine = at::zeros({count}), all;
  if (group.rank() == 0) all = data(0, group.size() * count);
  return {scatter_into(mine, all, group, 0), mine,
          data(0, group.size() * count).narrow(0, group.rank() * count, count)};
}

Started start_reduce_scatter(const Group& group, std::int64_t count, std::int64_t) {
  at::Tensor mine = at::zeros({count});
  const std::int64_t total = group.size() * count;
  return {reduce_scatter_into(mine, data(group.rank(), total), group), mine,
          at::stack(data_of_all(group, total)).sum(0).narrow(0, group.rank() * count, count)};
}

Started start_all_to_all(const Group& group, std::int64_t count, std::int64_t) {
  const std::int64_t total = group.size() * count;
  at::Tensor output = at::zeros({total});
  std::vector<at::Tensor> expected;
  for (const at::Tensor& theirs : data_of_all(group, total))
    expected.push_back(theirs.narrow(0, group.rank() * count, count));
  return {all_to_all_into(output, data(group.rank(), total), group), output, at::cat(expected)};
}

// From the busy rank to the next one.
Started start_send(const Group& group, std::int64_t count, std::int64_t busy) {
  const std::int64_t to = (busy + 1) % group.size();
  if (group.rank() == busy) return {send(data(busy, count), group, to)};
  if (group.rank() != to) return {};
  at::Tensor tensor = at::zeros({count});
  return {recv(tensor, group, busy), tensor, data(busy, count)};
}

Started start_barrier(const Group& group, std::int64_t, std::int64_t) { return {barrier(group)}; }

const std::vector<std::pair<std::string_view, Start>>& operations() {
  static const std::vector<std::pair<std::string_view, Start>> all{
      {"all_reduce", start_all_reduce},     {"reduce", start_reduce},
      {"broadcast", start_broadcast},       {"all_gather", start_all_gather},
      {"all_gather_v", start_all_gather_v}, {"gather", start_gather},
      {"scatter", start_scatter},           {"reduce_scatter", start_reduce_scatter},
      {"all_to_all", start_all_to_all},     {"send", start_send},
      {"barrier", start_barrier},
  };
  return all;
}

// What a rank does until `others` is done, which is a work of another world.
using Busy = void (*)(Work& others);

void until_done(Work& others, const std::function<void()>& meanwhile) {
  const auto limit = steady_clock::now() + kLimit;
  while (!others.done()) {
    if (steady_clock::now() > limit) throw std::runtime_error("it stands still");
    meanwhile();
  }
}

void compute(Work& others) {
  const at::Tensor matrix = at::ones({100, 100});
  until_done(others, [&] { (void)matrix.mm(matrix); });
}
void wait_elsewhere(Work& others) { others.wait(); }
void sleep(Work& others) {
  until_done(others, [] { std::this_thread::sleep_for(milliseconds(1)); });
}

void end_while(Busy busy_with, World& world) {
  const Group& group = world.group();
  World other = another_world(world);
  for (const auto& [name, start] : operations()) {
    for (const std::int64_t count : kCounts) {
      for (const std::int64_t busy : {std::int64_t{0}, world.size() - 1}) {  // the root, and not the root
        try {
          Started started = start(group, count, busy);
          if (world.rank() != busy) started.work.wait(2 * kLimit);
          Work others = barrier(other.group());
          if (world.rank() == busy) {
            busy_with(others);
            started.work.wait();
          } else {
            others.wait();
          }
          if (started.output.defined() && !started.output.equal(started.expected))
            throw std::runtime_error("it gives something else");
        } catch (const std::exception& error) {
          throw std::runtime_error(fmt::format("{} of {} floats, on rank {} with rank {} busy: {}", name, count,
                                               world.rank(), busy, error.what()));
        }
      }
    }
  }
}

// A Work that is dropped is no reason to stop.
void dropped_ends_while_its_rank_sleeps(World& world, const Promises&) {
  World other = another_world(world);
  for (const std::int64_t busy : {std::int64_t{0}, world.size() - 1}) {
    at::Tensor tensor = data(world.rank(), 300'003);
    if (world.rank() == busy) {
      {
        const Work dropped = all_reduce_(tensor, world.group());
      }
      Work others = barrier(other.group());
      sleep(others);
    } else {
      all_reduce_(tensor, world.group()).wait(2 * kLimit);
      barrier(other.group()).wait();
      if (!tensor.equal(at::stack(data_of_all(world.group(), 300'003)).sum(0))) throw std::runtime_error("a wrong sum");
    }
  }
}

}  // namespace
}  // namespace progress

std::vector<Case> progress_cases() {
  using namespace progress;
  const auto while_busy = [](Busy busy_with) {
    return [busy_with](World& world, const Promises&) { end_while(busy_with, world); };
  };
  return {
      {"OperationsEndWhileTheirRankComputes", {2, 3}, while_busy(compute)},
      {"OperationsEndWhileTheirRankWaitsInAnotherWorld", {2, 3}, while_busy(wait_elsewhere)},
      {"OperationsEndWhileTheirRankSleeps", {2, 3}, while_busy(sleep)},
      {"DroppedWorkEndsWhileItsRankSleeps", {2, 3}, dropped_ends_while_its_rank_sleeps},
  };
}

}  // namespace espalier::conformance
