// SPDX-License-Identifier: Apache-2.0
// Data: element i on rank r is a small number computed from both, so that sums are exact in every dtype and a swapped,
// missing or doubled contribution shows.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "espalier/base/error.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/mesh.hpp"
#include "tests/comm/conformance.hpp"

namespace espalier::conformance {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                      at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::mean,    ReduceOp::product, ReduceOp::min,
                             ReduceOp::max, ReduceOp::bit_and, ReduceOp::bit_or,  ReduceOp::bit_xor};
constexpr std::int64_t kCounts[] = {0, 1, 7, 1003};

template <class... Args>
void check(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw std::runtime_error(fmt::format(format, std::forward<Args>(args)...));
}

void check_equal(const at::Tensor& got, const at::Tensor& expected, std::string_view what) {
  if (got.equal(expected)) return;
  const at::Tensor differs = (got.reshape(-1) != expected.reshape(-1)).nonzero();
  const std::int64_t first = differs.numel() > 0 ? differs[0].item<std::int64_t>() : -1;
  throw std::runtime_error(fmt::format("{}: {} of {} elements differ, the first at {}: {} instead of {}", what,
                                       differs.size(0), expected.numel(), first,
                                       first < 0 ? 0 : got.reshape(-1)[first].item<double>(),
                                       first < 0 ? 0 : expected.reshape(-1)[first].item<double>()));
}

void check_contains(const std::string& text, std::string_view part) {
  check(text.find(part) != std::string::npos, "the error lacks \"{}\": {}", part, text);
}

// The text of the error that `action` must throw.
template <class ErrorType>
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ErrorType& error) {
    return error.what();
  }
  throw std::runtime_error("expected an error, but there was none");
}

// Elements first .. first+count of what rank contributes: 0 to 3.
at::Tensor data(std::int64_t rank, std::int64_t count, at::ScalarType dtype, std::int64_t first = 0) {
  at::Tensor values = (at::arange(first, first + count, at::kLong) * 7 + rank * 3 + (rank * rank) % 5).remainder(4);
  if (dtype == at::kBool) values = values.remainder(2);
  return values.to(dtype);
}

bool makes_sense(ReduceOp op, at::ScalarType dtype) {
  const bool bitwise = op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
  return at::isFloatingType(dtype) ? !bitwise : op != ReduceOp::mean;
}

// The plain way: one contribution after the other.
at::Tensor reduced(const std::vector<at::Tensor>& contributions, ReduceOp op) {
  const at::ScalarType dtype = contributions[0].scalar_type();
  at::Tensor result = contributions[0].to(at::isFloatingType(dtype) ? at::kDouble : at::kLong);
  for (std::size_t i = 1; i < contributions.size(); ++i) {
    const at::Tensor next = contributions[i].to(result.scalar_type());
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::mean:
        result = result + next;
        break;
      case ReduceOp::product:
        result = result * next;
        break;
      case ReduceOp::min:
        result = at::minimum(result, next);
        break;
      case ReduceOp::max:
        result = at::maximum(result, next);
        break;
      case ReduceOp::bit_and:
        result = result.bitwise_and(next);
        break;
      case ReduceOp::bit_or:
        result = result.bitwise_or(next);
        break;
      case ReduceOp::bit_xor:
        result = result.bitwise_xor(next);
        break;
    }
  }
  result = result.to(dtype);
  return op == ReduceOp::mean ? result / static_cast<std::int64_t>(contributions.size()) : result;
}

std::vector<at::Tensor> data_of_all(const Group& group, std::int64_t count, at::ScalarType dtype,
                                    std::int64_t first = 0) {
  std::vector<at::Tensor> all;
  for (std::int64_t member = 0; member < group.size(); ++member) {
    all.push_back(data(group.world_rank(member), count, dtype, first));
  }
  return all;
}

// ---- collectives ----

void all_reduces_every_dtype(World& world, const Promises&) {
  const Group& group = world.group();
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      if (!makes_sense(op, dtype)) continue;
      for (const std::int64_t count : {0, 1, 7, 1003, 70'001}) {
        at::Tensor tensor = data(world.rank(), count, dtype);
        all_reduce_(tensor, group, op).wait();
        check_equal(
            tensor, reduced(data_of_all(group, count, dtype), op),
            fmt::format("all_reduce_ of {} {}, operation {}", count, c10::toString(dtype), static_cast<int>(op)));
      }
    }
  }
}

void reduce_scatters_every_dtype(World& world, const Promises&) {
  const Group& group = world.group();
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      if (!makes_sense(op, dtype)) continue;
      for (const std::int64_t count : kCounts) {
        at::Tensor output = at::zeros({count}, dtype);
        reduce_scatter_into(output, data(world.rank(), count * group.size(), dtype), group, op).wait();
        check_equal(output, reduced(data_of_all(group, count, dtype, count * group.rank()), op),
                    fmt::format("reduce_scatter_into of {} {}", count, c10::toString(dtype)));
      }
    }
  }
}

void reduces_to_a_root(World& world, const Promises&) {
  const Group& group = world.group();
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      if (!makes_sense(op, dtype)) continue;
      for (const std::int64_t count : {0, 1, 7, 1003, 70'001}) {
        for (const std::int64_t root : {std::int64_t{0}, group.size() - 1}) {
          at::Tensor tensor = data(world.rank(), count, dtype);
          reduce_(tensor, group, root, op).wait();
          check_equal(
              tensor,
              group.rank() == root ? reduced(data_of_all(group, count, dtype), op) : data(world.rank(), count, dtype),
              fmt::format("reduce_ to {} of {} {}, operation {}", root, count, c10::toString(dtype),
                          static_cast<int>(op)));
        }
      }
    }
  }
}

void gathers_and_scatters_every_dtype(World& world, const Promises&) {
  const Group& group = world.group();
  const std::int64_t size = group.size();
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t count : {0, 1, 7, 1003, 300'001}) {
      for (const std::int64_t root : {std::int64_t{0}, size - 1}) {
        at::Tensor gathered;
        if (group.rank() == root) gathered = at::zeros({size, count}, dtype);
        gather_into(gathered, data(world.rank(), count, dtype), group, root).wait();
        if (group.rank() == root) check_equal(gathered, at::stack(data_of_all(group, count, dtype)), "gather_into");

        at::Tensor scattered = at::zeros({count}, dtype), all;
        if (group.rank() == root) all = data(world.rank(), size * count, dtype);
        scatter_into(scattered, all, group, root).wait();
        check_equal(scattered, data(group.world_rank(root), count, dtype, group.rank() * count), "scatter_into");
      }
    }
  }
}

void moves_every_dtype(World& world, const Promises&) {
  const Group& group = world.group();
  const std::int64_t size = group.size();
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t count : {0, 1, 7, 1003, 300'001}) {
      const at::Tensor mine = data(world.rank(), count, dtype);
      for (const std::int64_t root : {std::int64_t{0}, size - 1}) {
        at::Tensor tensor = mine.clone();
        broadcast_(tensor, group, root).wait();
        check_equal(tensor, data(group.world_rank(root), count, dtype), "broadcast_");
      }
      at::Tensor gathered = at::zeros({size, count}, dtype);
      all_gather_into(gathered, mine, group).wait();
      check_equal(gathered, at::stack(data_of_all(group, count, dtype)), "all_gather_into");

      std::vector<at::Tensor> outputs;
      std::vector<at::Tensor> expected;
      for (std::int64_t member = 0; member < size; ++member) {
        const std::int64_t uneven = member == 1 ? 0 : count + member;
        outputs.push_back(at::zeros({uneven}, dtype));
        expected.push_back(data(group.world_rank(member), uneven, dtype));
      }
      all_gather_v(outputs, expected[static_cast<std::size_t>(group.rank())], group).wait();
      for (std::size_t member = 0; member < outputs.size(); ++member) {
        check_equal(outputs[member], expected[member], "all_gather_v");
      }

      // Chunk for member j on rank r: elements [j * count, (j + 1) * count) of r's data.
      at::Tensor exchanged = at::zeros({size * count}, dtype);
      all_to_all_into(exchanged, data(world.rank(), size * count, dtype), group).wait();
      check_equal(exchanged, at::cat(data_of_all(group, count, dtype, group.rank() * count)), "all_to_all_into");

      const std::int64_t next = (group.rank() + 1) % size;
      const std::int64_t before = (group.rank() + size - 1) % size;
      at::Tensor received = at::zeros({count}, dtype);
      Work sent = send(mine, group, next, 3);
      recv(received, group, before, 3).wait();
      sent.wait();
      check_equal(received, data(group.world_rank(before), count, dtype), "send and recv");
    }
  }
}

// A copy of the tensor in memory that the ranks of a host share, as a part of a larger one.
at::Tensor in_buffer(const World& world, const at::Tensor& tensor) {
  const at::Tensor part =
      world.host_buffer({tensor.numel() + 3}, tensor.scalar_type()).narrow(0, 3, tensor.numel()).view(tensor.sizes());
  part.copy_(tensor);
  return part;
}

// Everybody passes a part of a buffer, some do, one does: the results are the same, and what is only read stays.
void takes_host_buffers(World& world, const Promises& promises) {
  const Group& group = world.group();
  const std::int64_t size = group.size(), rank = group.rank();
  const bool in_buffers[] = {true, rank % 2 == 0, rank == size - 1};
  for (const bool buffer : in_buffers) {
    const auto placed = [&](const at::Tensor& tensor) { return buffer ? in_buffer(world, tensor) : tensor; };
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kBool}) {
      for (const std::int64_t count : {0, 1003, 70'001, 600'011}) {
        const std::vector<at::Tensor> all = data_of_all(group, count, dtype);
        const at::Tensor& mine = all[static_cast<std::size_t>(rank)];
        at::Tensor tensor = placed(mine.clone());
        all_reduce_(tensor, group).wait();
        check_equal(tensor, reduced(all, ReduceOp::sum), "all_reduce_");
        for (const std::int64_t root : {std::int64_t{0}, size - 1}) {
          tensor = placed(mine.clone());
          reduce_(tensor, group, root).wait();
          check_equal(tensor, rank == root ? reduced(all, ReduceOp::sum) : mine, "reduce_");
          tensor = placed(mine.clone());
          broadcast_(tensor, group, root).wait();
          check_equal(tensor, all[static_cast<std::size_t>(root)], "broadcast_");
          tensor = placed(at::zeros({size, count}, dtype));
          gather_into(tensor, placed(mine), group, root).wait();
          check_equal(tensor, rank == root ? at::stack(all) : at::zeros({size, count}, dtype), "gather_into");
          tensor = placed(at::zeros({count}, dtype));
          scatter_into(tensor, placed(data(world.rank(), size * count, dtype)), group, root).wait();
          check_equal(tensor, data(group.world_rank(root), count, dtype, rank * count), "scatter_into");
        }
        tensor = placed(at::zeros({size, count}, dtype));
        all_gather_into(tensor, placed(mine), group).wait();
        check_equal(tensor, at::stack(all), "all_gather_into");
        tensor.zero_()[rank].copy_(mine);
        all_gather_into(tensor, tensor[rank], group).wait();
        check_equal(tensor, at::stack(all), "all_gather_into in place");
        tensor = placed(data(world.rank(), size * count, dtype));
        at::Tensor output = placed(at::zeros({count}, dtype));
        reduce_scatter_into(output, tensor, group).wait();
        check_equal(output, reduced(data_of_all(group, count, dtype, count * rank), ReduceOp::sum),
                    "reduce_scatter_into");
        check_equal(tensor, data(world.rank(), size * count, dtype), "the input of reduce_scatter_into");
        output = placed(at::zeros({size * count}, dtype));
        all_to_all_into(output, tensor, group).wait();
        check_equal(output, at::cat(data_of_all(group, count, dtype, rank * count)), "all_to_all_into");
      }
    }
    at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank));
    const at::Tensor noise = at::randn({400'003}, generator).mul_(rank % 2 == 0 ? 1 : 1000);
    at::Tensor ordinary = noise.clone(), shared = placed(noise.clone());
    all_reduce_(ordinary, group).wait();
    all_reduce_(shared, group).wait();
    if (promises.ordered_sums) check_equal(shared, ordinary, "bits of the sum");
  }
}

// Under way at the same time, waited for in another order, some of them dropped, and memory that a program lets go
// meanwhile.
void host_buffers_in_flight(World& world, const Promises&) {
  const Group& group = world.group();
  const std::int64_t count = 100'000, parts = 10;
  const at::Tensor whole = world.host_buffer({parts, count}, at::kFloat);
  for (int round = 0; round < 5; ++round) {
    std::vector<Work> works;
    for (std::int64_t part = 0; part < parts; ++part) {
      whole[part].copy_(data(world.rank(), count, at::kFloat, part));
      at::Tensor slice = whole[part];
      works.push_back(all_reduce_(slice, group));
    }
    for (int i = 0; i < 3; ++i) {
      at::Tensor forgotten = in_buffer(world, data(world.rank(), count, at::kFloat));
      const Work dropped = all_reduce_(forgotten, group);
    }
    at::Tensor gone = in_buffer(world, data(world.rank(), count, at::kFloat));
    works.push_back(all_reduce_(gone, group));
    gone.reset();
    const at::Tensor next = world.host_buffer({count}, at::kFloat).fill_(-1);
    std::reverse(works.begin(), works.end());
    wait_all(works);
    check_equal(next, at::full({count}, -1, at::kFloat), "a buffer made while others were in use");
    for (std::int64_t part = 0; part < parts; ++part) {
      check_equal(whole[part], reduced(data_of_all(group, count, at::kFloat, part), ReduceOp::sum),
                  "a part of the buffer");
    }
  }
  barrier(group).wait();
}

void all_to_all_with_splits(World& world, const Promises&) {
  const Group& group = world.group();
  const std::int64_t size = group.size();
  // Rank r sends (r + j) % 3 rows to member j; rows of 5.
  const auto rows = [](std::int64_t from, std::int64_t to) { return (from + to) % 3; };
  std::vector<std::int64_t> input_splits, output_splits;
  std::vector<at::Tensor> input, expected;
  for (std::int64_t other = 0; other < size; ++other) {
    input_splits.push_back(rows(group.rank(), other));
    output_splits.push_back(rows(other, group.rank()));
    input.push_back(at::full({rows(group.rank(), other), 5}, 10 * group.rank() + other, at::kFloat));
    expected.push_back(at::full({rows(other, group.rank()), 5}, 10 * other + group.rank(), at::kFloat));
  }
  at::Tensor output = at::zeros({at::cat(expected).size(0), 5});
  all_to_all_into(output, at::cat(input), group, output_splits, input_splits).wait();
  check_equal(output, at::cat(expected), "all_to_all_into with splits");
}

// Every second column of a matrix twice as wide: same shape, not contiguous.
at::Tensor strided(const at::Tensor& tensor) {
  at::Tensor wide = at::full({tensor.size(0), 2 * tensor.size(1)}, 99, tensor.options());
  at::Tensor view = wide.slice(1, 0, std::nullopt, 2);
  view.copy_(tensor);
  return view;
}

void takes_tensors_that_are_not_contiguous(World& world, const Promises&) {
  const Group& group = world.group();
  const std::int64_t size = group.size();
  const std::vector<at::Tensor> all = [&] {
    std::vector<at::Tensor> flat = data_of_all(group, 6 * size, at::kFloat);
    for (at::Tensor& tensor : flat) tensor = tensor.view({size, 6});
    return flat;
  }();
  const at::Tensor mine = all[static_cast<std::size_t>(group.rank())];

  at::Tensor tensor = strided(mine);
  all_reduce_(tensor, group).wait();
  check_equal(tensor, reduced(all, ReduceOp::sum), "all_reduce_");
  check(tensor.is_contiguous() == false, "the view became contiguous");

  tensor = strided(mine);
  broadcast_(tensor, group, size - 1).wait();
  check_equal(tensor, all.back(), "broadcast_");

  tensor = strided(mine);
  reduce_(tensor, group, 0).wait();
  check_equal(tensor, group.rank() == 0 ? reduced(all, ReduceOp::sum) : mine, "reduce_");

  tensor = strided(at::zeros({size * size, 6}));
  gather_into(tensor, strided(mine), group, 0).wait();
  check_equal(tensor, group.rank() == 0 ? at::cat(all) : at::zeros({size * size, 6}), "gather_into");

  at::Tensor row = strided(at::zeros({1, 6}));
  scatter_into(row, strided(mine), group, 0).wait();
  check_equal(row, all[0].narrow(0, group.rank(), 1), "scatter_into");

  tensor = strided(at::zeros({size * size, 6}));
  all_gather_into(tensor, strided(mine), group).wait();
  check_equal(tensor, at::cat(all), "all_gather_into");

  at::Tensor column = strided(at::zeros({1, 6}));
  reduce_scatter_into(column, strided(mine), group).wait();
  check_equal(column, reduced(all, ReduceOp::sum).narrow(0, group.rank(), 1), "reduce_scatter_into");

  tensor = strided(at::zeros({size, 6}));
  all_to_all_into(tensor, mine.t().contiguous().t(), group).wait();
  std::vector<at::Tensor> rows;
  for (const at::Tensor& each : all) rows.push_back(each.narrow(0, group.rank(), 1));
  check_equal(tensor, at::cat(rows), "all_to_all_into");

  std::vector<at::Tensor> outputs;
  for (std::int64_t member = 0; member < size; ++member) outputs.push_back(strided(at::zeros({size, 6})));
  all_gather_v(outputs, strided(mine), group).wait();
  for (std::size_t member = 0; member < outputs.size(); ++member)
    check_equal(outputs[member], all[member], "all_gather_v");

  tensor = strided(at::zeros({size, 6}));
  Work sent = send(mine.t(), group, (group.rank() + 1) % size);
  at::Tensor transposed = tensor.t();
  recv(transposed, group, (group.rank() + size - 1) % size).wait();
  sent.wait();
  check_equal(tensor, all[static_cast<std::size_t>((group.rank() + size - 1) % size)], "send and recv");
}

void groups_of_one_are_local(World& world, const Promises&) {
  const Group alone = world.make_group(RankSet::single(world.rank()), "alone");
  check(alone.size() == 1 && alone.rank() == 0, "size {} rank {}", alone.size(), alone.rank());
  const std::int64_t before = world.bytes_sent();
  at::Tensor tensor = data(world.rank(), 5, at::kFloat);
  at::Tensor output = at::zeros({5});
  all_reduce_(tensor, alone, ReduceOp::mean).wait();
  reduce_(tensor, alone, 0, ReduceOp::mean).wait();
  broadcast_(tensor, alone, 0).wait();
  gather_into(output, tensor, alone, 0).wait();
  check_equal(output, data(world.rank(), 5, at::kFloat), "gather_into");
  scatter_into(output.zero_(), tensor, alone, 0).wait();
  check_equal(output, data(world.rank(), 5, at::kFloat), "scatter_into");
  all_gather_into(output, tensor, alone).wait();
  check_equal(output, data(world.rank(), 5, at::kFloat), "all_gather_into");
  reduce_scatter_into(output.zero_(), tensor, alone).wait();
  check_equal(output, data(world.rank(), 5, at::kFloat), "reduce_scatter_into");
  all_to_all_into(output.zero_(), tensor, alone).wait();
  check_equal(output, data(world.rank(), 5, at::kFloat), "all_to_all_into");
  std::vector<at::Tensor> outputs{at::zeros({5})};
  all_gather_v(outputs, tensor, alone).wait();
  check_equal(outputs[0], data(world.rank(), 5, at::kFloat), "all_gather_v");
  barrier(alone).wait();
  check(world.bytes_sent() == before, "{} bytes were sent", world.bytes_sent() - before);
}

void interleaves_overlapping_groups(World& world, const Promises&) {
  const std::int64_t rank = world.rank();
  const std::int64_t size = world.size();
  std::vector<std::int64_t> same_parity;
  for (std::int64_t other = rank % 2; other < size; other += 2) same_parity.push_back(other);
  const Group parity = world.make_group(RankSet::of(same_parity), "parity");
  const Group twin = world.group().duplicate("twin");
  const std::int64_t pair_first = rank / 2 * 2;
  const bool in_pair = pair_first + 1 < size;
  const Group pair = world.make_group(in_pair ? RankSet::range(pair_first, 2) : RankSet::single(rank), "pair");
  for (std::int64_t round = 0; round < 50; ++round) {
    const std::int64_t count = 1 + round * 211;
    std::vector<const Group*> order{&world.group(), &parity, &twin, &pair};
    // Groups that share no two ranks may come in any order; those that do keep to one.
    if (round % 3 == 1) order = {&pair, &twin, &world.group(), &parity};
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (const Group* group : order) {
      tensors.push_back(data(rank, count, at::kFloat, round));
      works.push_back(all_reduce_(tensors.back(), *group));
    }
    if (round % 2 == 0) std::reverse(works.begin(), works.end());  // waited for in another order than posted
    wait_all(works);
    for (std::size_t i = 0; i < order.size(); ++i) {
      check_equal(tensors[i], reduced(data_of_all(*order[i], count, at::kFloat, round), ReduceOp::sum),
                  order[i]->name());
    }
  }
}

void sums_in_the_order_of_ranks(World& world, const Promises& promises) {
  const Group& group = world.group();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t count : {1, 100, 5'000, 400'003}) {
      std::vector<at::Tensor> contributions;
      for (std::int64_t rank = 0; rank < group.size(); ++rank) {
        at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank * 1000 + count));
        contributions.push_back(at::randn({count}, generator, at::kDouble).mul_(rank % 2 == 0 ? 1 : 1000).to(dtype));
      }
      at::Tensor expected = contributions[0].to(dtype == at::kDouble ? at::kDouble : at::kFloat);
      for (std::size_t i = 1; i < contributions.size(); ++i)
        expected = expected + contributions[i].to(expected.scalar_type());
      expected = expected.to(dtype);
      std::this_thread::sleep_for(milliseconds((world.rank() * 7 + count) % 5));  // whoever comes first
      at::Tensor tensor = contributions[static_cast<std::size_t>(group.rank())].clone();
      all_reduce_(tensor, group).wait();
      if (promises.ordered_sums) check_equal(tensor, expected, "all_reduce_");
      at::Tensor at_root = contributions[static_cast<std::size_t>(group.rank())].clone();
      reduce_(at_root, group, 0).wait();
      if (promises.ordered_sums && group.rank() == 0) check_equal(at_root, expected, "reduce_");
      at::Tensor all = at::empty({group.size(), count}, dtype);
      all_gather_into(all, tensor, group).wait();
      for (std::int64_t member = 0; member < group.size(); ++member)
        check_equal(all[member], tensor, "other members' bits");
    }
  }
}

// ---- point to point ----

void matches_messages_by_sender_and_tag(World& world, const Promises&) {
  const Group& group = world.group();
  const std::int64_t size = group.size();
  constexpr std::int64_t kMessages = 100;  // more than a ring holds
  std::vector<Work> sends;
  for (std::int64_t i = 0; i < kMessages; ++i) {
    for (std::int64_t other = 0; other < size; ++other) {
      if (other == group.rank()) continue;
      const at::Tensor message = at::full({1 + i * 10}, group.rank() * 1000 + i, at::kLong);
      sends.push_back(send(message, group, other, i % 4));
    }
  }
  for (std::int64_t tag = 3; tag >= 0; --tag) {  // tags backwards, messages of a tag in order
    for (std::int64_t other = size - 1; other >= 0; --other) {
      if (other == group.rank()) continue;
      for (std::int64_t i = tag; i < kMessages; i += 4) {
        at::Tensor message = at::empty({1 + i * 10}, at::kLong);
        recv(message, group, other, tag).wait();
        check_equal(message, at::full({1 + i * 10}, other * 1000 + i, at::kLong), "message");
      }
    }
  }
  wait_all(sends);
}

void both_send_before_they_receive(World& world, const Promises&) {
  const Group& group = world.group();
  const std::int64_t other = group.rank() ^ 1;
  const std::int64_t count = 1'000'000;  // 4 MB, four times the arena of this case
  if (other >= group.size()) return;
  for (int round = 0; round < 3; ++round) {
    send(data(world.rank(), count, at::kFloat, round), group, other).wait();
    // A collective in between has to get past the message.
    const Group pair = world.make_group(RankSet::range(world.rank() / 2 * 2, 2), "pair");
    at::Tensor sum = data(world.rank(), 100'000, at::kFloat);
    all_reduce_(sum, pair).wait();
    check_equal(sum, reduced(data_of_all(pair, 100'000, at::kFloat), ReduceOp::sum), "all_reduce_");
    at::Tensor received = at::zeros({count});
    recv(received, group, other).wait();
    check_equal(received, data(group.world_rank(other), count, at::kFloat, round), "received");
  }
}

void send_arrives_while_its_sender_computes(World& world, const Promises&) {
  const Group& group = world.group();
  const std::int64_t count = 4'000'000;  // 16 MB
  const auto now = [] { return steady_clock::now().time_since_epoch() / milliseconds(1); };
  barrier(group).wait();
  if (group.rank() == 0) {
    at::Tensor tensor = data(0, count, at::kFloat);
    const Work dropped = send(tensor, group, 1);
    tensor.fill_(-1);  // it was copied
    std::this_thread::sleep_for(milliseconds(1000));
    send(at::full({1}, now(), at::kLong), group, 1).wait();
  } else if (group.rank() == 1) {
    at::Tensor received = at::empty({count});
    recv(received, group, 0).wait();
    const auto arrived = now();
    check_equal(received, data(0, count, at::kFloat), "received");
    at::Tensor awake = at::empty({1}, at::kLong);
    recv(awake, group, 0).wait();
    const std::int64_t early_ms = awake.item<std::int64_t>() - arrived;
    check(early_ms > 200, "arrived only {} ms before its sender called in again", early_ms);
  }
}

void delivers_what_a_rank_that_leaves_has_sent(World& world, const Promises&) {
  const Group& group = world.group();
  const std::int64_t count = 1'000'000;  // 4 MB, four times the arena of this case
  barrier(group).wait();
  if (group.rank() == 0) {
    for (std::int64_t other = 1; other < group.size(); ++other) {
      const Work dropped = send(data(other, count, at::kFloat), group, other, 5);
    }
    return;
  }
  std::this_thread::sleep_for(milliseconds(300));
  at::Tensor received = at::zeros({count});
  recv(received, group, 0, 5).wait();
  check_equal(received, data(group.rank(), count, at::kFloat), "received");
}

void finishes_dropped_work(World& world, const Promises&) {
  const Group& group = world.group();
  at::Tensor dropped = data(world.rank(), 200'000, at::kFloat);
  at::Tensor dropped_half = data(world.rank(), 1000, at::kHalf);
  at::Tensor received = at::zeros({1000});
  const std::int64_t size = group.size();
  {
    const Work reduction = all_reduce_(dropped, group);
    const Work half_reduction = all_reduce_(dropped_half, group);
    const Work receiving = recv(received, group, (group.rank() + size - 1) % size);
    const Work sending = send(data(world.rank(), 1000, at::kFloat), group, (group.rank() + 1) % size);
  }
  for (int i = 0; i < 3; ++i) {
    at::Tensor tensor = data(world.rank(), 300'000, at::kFloat);
    all_reduce_(tensor, group).wait();
    check_equal(tensor, reduced(data_of_all(group, 300'000, at::kFloat), ReduceOp::sum), "all_reduce_");
  }
  barrier(group).wait();
  check_equal(dropped, reduced(data_of_all(group, 200'000, at::kFloat), ReduceOp::sum), "dropped all_reduce_");
  check_equal(dropped_half, reduced(data_of_all(group, 1000, at::kHalf), ReduceOp::sum),
              "dropped all_reduce_ of float16");
  check_equal(received, data((group.rank() + size - 1) % size, 1000, at::kFloat), "dropped recv");
}

void keeps_tensors_alive(World& world, const Promises&) {
  const Group& group = world.group();
  std::vector<Work> works;
  for (int i = 0; i < 20; ++i) {
    at::Tensor tensor = data(world.rank(), 50'000, at::kFloat);
    works.push_back(all_reduce_(tensor, group));
  }  // every tensor is gone here
  for (Work& work : works) {
    while (!work.done()) std::this_thread::yield();
  }
}

// ---- groups and agreement ----

void duplicates_are_apart(World& world, const Promises&) {
  const Group first = world.group().duplicate("first");
  check(&first.state() == &world.group().duplicate("first").state(), "the same name gave another group");
  const Group second = world.group().duplicate("second");
  // Posted in different orders on different ranks: only separate spaces keep them apart.
  at::Tensor a = at::full({3}, 1, at::kLong);
  at::Tensor b = at::full({3}, 100, at::kLong);
  const bool swap = world.rank() % 2 == 1;
  Work one = all_reduce_(swap ? b : a, swap ? second : first);
  Work two = all_reduce_(swap ? a : b, swap ? first : second);
  one.wait();
  two.wait();
  check_equal(a, at::full({3}, world.size(), at::kLong), "first");
  check_equal(b, at::full({3}, 100 * world.size(), at::kLong), "second");
  const Group part = world.make_group(RankSet::single(world.rank()), "part");
  check_contains(error_of<ConfigError>([&] { (void)part.duplicate("first"); }),
                 "the name 'first' belongs to the ranks [0,1");
}

void mesh_names_the_groups_of_a_layout(World& world, const Promises&) {
  const Mesh mesh(world, {.pipe = 2, .data = kRest});
  check(mesh.size("data") == world.size() / 2, "data={}", mesh.size("data"));
  for (const char* family : {"data", "pipe", "model"}) {
    const Group& group = mesh.group(family);
    at::Tensor sum = at::full({1}, world.rank(), at::kLong);
    all_reduce_(sum, group).wait();
    std::int64_t expected = 0;
    for (std::int64_t member = 0; member < group.size(); ++member) expected += group.world_rank(member);
    check(sum.item<std::int64_t>() == expected, "{}: {} instead of {}", family, sum.item<std::int64_t>(), expected);
  }
  check(mesh.group("pipe").rank() == mesh.coordinate("pipe"), "coordinate");
  check_contains(error_of<ConfigError>([&] { (void)mesh.group("colour"); }), "there is no family of groups 'colour'");
}

// Every rank must have got the same text.
void check_same_everywhere(const World& world, const std::string& text) {
  const std::vector<std::string> entries{text};
  agree(world.group(), "error text", entries);
}

void disagreeing_layouts_are_named(World& world, const Promises&) {
  const std::string text =
      error_of<ConfigError>([&] { const Mesh mesh(world, {.pipe = world.rank() == 1 ? 2 : 1, .data = kRest}); });
  check_contains(text, "layout: the ranks of group 'world' differ, first in entry 1: 'pipe=1' on rank");
  check_contains(text, "'pipe=2' on rank 1");
  check_same_everywhere(world, text);
  // A list that is longer on one rank, equal up to there.
  std::vector<std::string> entries{"a", "b"};
  if (world.rank() == 0) entries.push_back("c");
  const std::string longer = error_of<ConfigError>([&] { agree(world.group(), "plan", entries); });
  check_contains(longer, "first in entry 3: 'c' on rank 0; nothing on rank");
  check_same_everywhere(world, longer);
}

void errors_of_some_ranks_become_everybodys(World& world, const Promises&) {
  agree_no_error(world.group(), std::nullopt);
  std::optional<std::string> mine;
  if (world.rank() > 0) mine = fmt::format("rank {} cannot read its file", world.rank());
  const std::string text = error_of<ConfigError>([&] { agree_no_error(world.group(), mine); });
  check(text == "rank 1 cannot read its file", "got: {}", text);
}

void refuses_wrong_arguments(World& world, const Promises&) {
  const Group& group = world.group();
  const std::int64_t size = group.size();
  at::Tensor tensor = at::zeros({3});
  at::Tensor integers = at::zeros({3}, at::kInt);
  at::Tensor small = at::zeros({2});
  at::Tensor undefined;
  const auto refuses = [](std::string_view part, const std::function<void()>& action) {
    check_contains(error_of<ConfigError>(action), part);
  };
  refuses("is undefined", [&] { (void)all_reduce_(undefined, group); });
  refuses("mean needs a floating dtype", [&] { (void)all_reduce_(integers, group, ReduceOp::mean); });
  refuses("bit_ operations need an integer", [&] { (void)all_reduce_(tensor, group, ReduceOp::bit_or); });
  refuses(fmt::format("root {} is not in the group", size), [&] { (void)broadcast_(tensor, group, size); });
  refuses("mean needs a floating dtype", [&] { (void)reduce_(integers, group, 0, ReduceOp::mean); });
  refuses("root -1 is not in the group", [&] { (void)reduce_(tensor, group, -1); });
  refuses(fmt::format("root {} is not in the group", size), [&] { (void)gather_into(tensor, tensor, group, size); });
  refuses(fmt::format("root {} is not in the group", size), [&] { (void)scatter_into(tensor, tensor, group, size); });
  refuses("the output tensor is undefined", [&] { (void)gather_into(undefined, tensor, group, group.rank()); });
  refuses(fmt::format("the root's output has 2 elements; expected {} members x 3", size),
          [&] { (void)gather_into(small, tensor, group, group.rank()); });
  refuses("the input tensor is undefined", [&] { (void)scatter_into(tensor, undefined, group, group.rank()); });
  refuses(fmt::format("the root's input has 3 elements; expected {} members x 3", size),
          [&] { (void)scatter_into(tensor, tensor, group, group.rank()); });
  refuses("output is float32 but input is int32", [&] { (void)scatter_into(tensor, integers, group, group.rank()); });
  refuses("receiver -1 is not in the group", [&] { (void)send(tensor, group, -1); });
  refuses("cannot send to itself", [&] { (void)send(tensor, group, group.rank()); });
  refuses("cannot receive from itself", [&] { (void)recv(tensor, group, group.rank()); });
  refuses(fmt::format("output has 2 elements; expected {} members x 3", size),
          [&] { (void)all_gather_into(small, tensor, group); });
  refuses("output is float32 but input is int32", [&] { (void)all_gather_into(tensor, integers, group); });
  refuses("input has 3 elements; expected", [&] { (void)reduce_scatter_into(small, tensor, group); });
  refuses("1 splits [3] of output", [&] {
    const std::int64_t splits[] = {3};
    (void)all_to_all_into(tensor, tensor, group, splits, splits);
  });
  refuses("0 outputs; expected one for each", [&] { (void)all_gather_v({}, tensor, group); });
  refuses("there is no group rank 99", [&] { (void)group.world_rank(99); });
  refuses("the group is empty", [&] { (void)barrier(Group()); });
  refuses("is not a member of", [&] { (void)world.make_group(RankSet::single((world.rank() + 1) % size), "others"); });
  refuses("ranks outside the world", [&] { (void)world.make_group(RankSet::range(0, size + 1), "too large"); });
  barrier(group).wait();  // nothing was sent
}

// ---- failures ----

void different_calls_are_both_named(World& world, const Promises&) {
  at::Tensor tensor = at::zeros({4});
  barrier(world.group()).wait();
  const std::string text = error_of<CommError>([&] {
    if (world.rank() == 1) {
      broadcast_(tensor, world.group(), 1).wait();
      barrier(world.group()).wait();  // the root of a broadcast waits for nobody
    } else {
      all_reduce_(tensor, world.group()).wait();
    }
  });
  check_contains(text, "all_reduce(sum, float32 x 4)");
  check_contains(text, "broadcast(float32 x 4, root 1)");
  check_contains(text, "#1");
}

void different_counts_and_dtypes_are_named(World& world, const Promises&) {
  at::Tensor tensor = at::zeros({world.rank() == 0 ? 4 : 5}, world.rank() == 0 ? at::kFloat : at::kDouble);
  const std::string text = error_of<CommError>([&] { all_reduce_(tensor, world.group()).wait(); });
  check_contains(text, "float32 x 4");
  check_contains(text, "float64 x 5");
}

// Who sends nothing learns it too: here each takes itself for the root, or the other.
void different_roots_are_named(World& world, const std::function<Work(at::Tensor&)>& call) {
  at::Tensor tensor = at::zeros({4});
  barrier(world.group()).wait();
  const auto before = steady_clock::now();
  const std::string text = error_of<CommError>([&] { call(tensor).wait(); });
  check(steady_clock::now() - before < milliseconds(5000), "it took {} ms",
        (steady_clock::now() - before) / milliseconds(1));
  check_contains(text, "(float32 x 4, root 0)");
  check_contains(text, "(float32 x 4, root 1)");
}
void two_roots_of_a_gather_are_named(World& world, const Promises&) {
  different_roots_are_named(world, [&](at::Tensor& tensor) {
    at::Tensor all = at::zeros({8});
    return gather_into(all, tensor, world.group(), world.rank());
  });
}
void no_root_of_a_broadcast_is_named(World& world, const Promises&) {
  different_roots_are_named(world,
                            [&](at::Tensor& tensor) { return broadcast_(tensor, world.group(), 1 - world.rank()); });
}

void different_sends_and_receives_are_named(World& world, const Promises&) {
  at::Tensor tensor = at::zeros({world.rank() == 0 ? 4 : 5});
  const std::string text = error_of<CommError>([&] {
    if (world.rank() == 0) send(tensor, world.group(), 1, 7).wait();
    if (world.rank() == 1) recv(tensor, world.group(), 0, 7).wait();
    barrier(world.group()).wait();
  });
  check_contains(text, "send(float32 x 4)");
  check_contains(text, "recv(float32 x 5)");
}

void leaving_rank_is_named(World& world, const Promises&) {
  barrier(world.group()).wait();
  const std::int64_t last = world.size() - 1;
  if (world.rank() == last) return;
  const std::string text = error_of<CommError>([&] { barrier(world.group()).wait(); });
  check_contains(text, fmt::format("rank {} (", last));
  check_contains(text, "has left");
  check_contains(text, "barrier() #1 of group 'world'");
  const auto before = steady_clock::now();
  const std::string again = error_of<CommError>([&] { barrier(world.group()).wait(); });
  check(again == text, "a poisoned world says something else: {}", again);
  check(steady_clock::now() - before < milliseconds(100), "a poisoned world waits");
}

void leaving_rank_is_named_by_owners_of_buffers(World& world, const Promises&) {
  at::Tensor tensor = in_buffer(world, at::ones({500'000}));
  barrier(world.group()).wait();
  const std::int64_t last = world.size() - 1;
  if (world.rank() == last) return;
  const std::string text = error_of<CommError>([&] {
    broadcast_(tensor, world.group(), 0).wait();  // its root does not wait for who reads no more
    all_reduce_(tensor, world.group()).wait();
  });
  check_contains(text, fmt::format("rank {} (", last));
  check_contains(text, "has left");
  check_contains(text, "all_reduce(sum, float32 x 500000) #2 of group 'world'");
}

void deadline_names_who_is_waited_for(World& world, const Promises&) {
  if (world.rank() == 0) {
    at::Tensor tensor = at::zeros({4});
    const auto before = steady_clock::now();
    const std::string text = error_of<CommError>([&] { recv(tensor, world.group(), 1, 9).wait(milliseconds(100)); });
    const auto waited = steady_clock::now() - before;
    check(waited >= milliseconds(100) && waited < milliseconds(1000), "waited {} ms", waited / milliseconds(1));
    check_contains(text, "timed out after 1");
    check_contains(text, "on rank 0");
    check_contains(text, "rank 1");
    const std::string again = error_of<CommError>([&] { (void)barrier(world.group()); });
    check(again == text, "a poisoned world says something else: {}", again);
  } else {
    // The others learn of it, although nobody called an operation that fails by itself.
    const std::string text = error_of<CommError>([&] { barrier(world.group()).wait(); });
    check_contains(text, "rank 0");
    check_contains(text, "timed out after");
  }
}

// A group's own deadline ends its waits, and through them the world.
void group_has_its_own_deadline(World& world, const Promises&) {
  const Group impatient = world.group().with_timeout(milliseconds(200));
  check(impatient.timeout() == milliseconds(200), "it says {} ms", impatient.timeout() / milliseconds(1));
  at::Tensor tensor = at::ones({4});
  all_reduce_(tensor, impatient).wait();
  check(tensor.sum().item<float>() == 4.0F * static_cast<float>(world.size()), "the sum is {}",
        tensor.sum().item<float>());
  const auto before = steady_clock::now();
  if (world.rank() == 0)
    check_contains(error_of<CommError>([&] { recv(tensor, impatient, 1, 9).wait(); }), "rank 1");
  else
    check_contains(error_of<CommError>([&] { barrier(world.group()).wait(); }), "rank 0");
  const auto waited = steady_clock::now() - before;
  check(waited < milliseconds(3000), "waited {} ms", waited / milliseconds(1));
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    const auto arenas = [](const Promises& promises) { return promises.small_arenas; };
    const auto mismatch = [](const Promises& promises) { return promises.names_mismatch; };
    const auto leavers = [](const Promises& promises) { return promises.names_leavers; };
    std::vector<Case> here{
        {"AllReducesEveryDtype", {2, 3, 4}, all_reduces_every_dtype},
        {"ReduceScattersEveryDtype", {2, 3}, reduce_scatters_every_dtype},
        {"ReducesToARoot", {2, 3, 4}, reduces_to_a_root},
        {"GathersAndScattersEveryDtype", {2, 3, 5}, gathers_and_scatters_every_dtype},
        {"MovesEveryDtype", {2, 3, 5}, moves_every_dtype},
        {"TakesHostBuffers", {2, 3, 4}, takes_host_buffers},
        {"HostBuffersInFlight", {2, 3}, host_buffers_in_flight},
        {"AllToAllWithSplits", {2, 3, 4}, all_to_all_with_splits},
        {"TakesTensorsThatAreNotContiguous", {2, 3}, takes_tensors_that_are_not_contiguous},
        {"GroupsOfOneAreLocal", {1, 2}, groups_of_one_are_local},
        {"InterleavesOverlappingGroups", {2, 3, 5}, interleaves_overlapping_groups},
        {"SumsInTheOrderOfRanks", {2, 3, 4}, sums_in_the_order_of_ranks},
        {"MatchesMessagesBySenderAndTag", {2, 3}, matches_messages_by_sender_and_tag},
        {.name = "BothSendBeforeTheyReceive",
         .sizes = {2, 4},
         .body = both_send_before_they_receive,
         .arena_bytes = 1 << 20},
        {"SendArrivesWhileItsSenderComputes", {2}, send_arrives_while_its_sender_computes},
        {.name = "RunsInASmallArena",
         .sizes = {3},
         .body = moves_every_dtype,
         .applies = arenas,
         .arena_bytes = 128 << 10},
        {.name = "ReducesToARootInASmallArena",
         .sizes = {3},
         .body = reduces_to_a_root,
         .applies = arenas,
         .arena_bytes = 128 << 10},
        {.name = "GathersAndScattersInASmallArena",
         .sizes = {3},
         .body = gathers_and_scatters_every_dtype,
         .applies = arenas,
         .arena_bytes = 128 << 10},
        {.name = "TakesHostBuffersInASmallArena",
         .sizes = {3},
         .body = takes_host_buffers,
         .applies = arenas,
         .arena_bytes = 128 << 10},
        {.name = "DeliversWhatARankThatLeavesHasSent",
         .sizes = {2, 3},
         .body = delivers_what_a_rank_that_leaves_has_sent,
         .arena_bytes = 1 << 20},
        {"FinishesDroppedWork", {2, 3}, finishes_dropped_work},
        {"KeepsTensorsAlive", {2, 3}, keeps_tensors_alive},
        {"DuplicatesAreApart",
         {2, 3},
         duplicates_are_apart,
         [](const Promises& promises) { return promises.free_order; }},
        {"MeshNamesTheGroupsOfALayout", {2, 4}, mesh_names_the_groups_of_a_layout},
        {"DisagreeingLayoutsAreNamed", {2, 4}, disagreeing_layouts_are_named},
        {"ErrorsOfSomeRanksBecomeEverybodys", {2, 3}, errors_of_some_ranks_become_everybodys},
        {"RefusesWrongArguments", {2}, refuses_wrong_arguments},
        {"DifferentCallsAreBothNamed", {2, 3}, different_calls_are_both_named, mismatch},
        {"DifferentCountsAndDtypesAreNamed", {2}, different_counts_and_dtypes_are_named, mismatch},
        {"TwoRootsOfAGatherAreNamed", {2}, two_roots_of_a_gather_are_named, mismatch},
        {"NoRootOfABroadcastIsNamed", {2}, no_root_of_a_broadcast_is_named, mismatch},
        {"DifferentSendsAndReceivesAreNamed",
         {2, 3},
         different_sends_and_receives_are_named,
         [](const Promises& promises) { return promises.names_mismatched_messages; }},
        {"LeavingRankIsNamed", {2, 4}, leaving_rank_is_named, leavers},
        {"LeavingRankIsNamedByOwnersOfBuffers", {2, 4}, leaving_rank_is_named_by_owners_of_buffers, leavers},
        {"GroupHasItsOwnDeadline", {2}, group_has_its_own_deadline, leavers},
        {"DeadlineNamesWhoIsWaitedFor", {2, 3}, deadline_names_who_is_waited_for, leavers},
    };
    std::ranges::move(progress_cases(), std::back_inserter(here));
    return here;
  }();
  return all;
}

}  // namespace espalier::conformance
