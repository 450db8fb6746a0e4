// SPDX-License-Identifier: Apache-2.0
// What all backends have in common: validation, groups of one, memory that is not contiguous, emulation.
#include "espalier/comm/collectives.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/communicator.hpp"
#include "espalier/comm/names.hpp"
#include "espalier/comm/world_state.hpp"

namespace espalier {
namespace {

using detail::Operation;

// An operation with something left to do on this rank once the backend has finished: copy back, divide, cast.
class FinishingOperation final : public Operation {
 public:
  FinishingOperation(std::shared_ptr<Operation> inner, std::function<void()> finish,
                     std::weak_ptr<detail::WorldCore> world)
      : inner_(std::move(inner)), finish_(std::move(finish)), world_(std::move(world)) {}

  bool done() override {
    if (finish_ && inner_->done()) finish();
    return !finish_;
  }
  void wait(detail::Clock::time_point deadline) override {
    if (!finish_) return;
    inner_->wait(deadline);
    finish();
  }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }
  void park(std::shared_ptr<Operation> self) override {
    if (const auto world = world_.lock(); world != nullptr && finish_) world->park(std::move(self));
  }

 private:
  void finish() {
    const at::NoGradGuard no_grad;
    std::exchange(finish_, nullptr)();
  }

  std::shared_ptr<Operation> inner_;
  std::function<void()> finish_;  // empty once it has run
  std::weak_ptr<detail::WorldCore> world_;
};

Work started(const Group& group, std::shared_ptr<Operation> operation) {
  return Work(std::move(operation), group.state().timeout);
}

Work finishing(const Group& group, std::shared_ptr<Operation> operation, std::function<void()> finish) {
  if (finish) {
    operation = std::make_shared<FinishingOperation>(std::move(operation), std::move(finish), group.state().core);
  }
  return started(group, std::move(operation));
}

// What every call begins with.
void begin(std::string_view where, const Group& group) {
  ESPALIER_CHECK_CONFIG(group.valid(),
                        "{}: the group is empty (a default Group); make one with World::make_group or a Mesh", where);
  group.state().core->check_open(where, group.name());
  group.state().core->advance_parked();
}

void check_tensor(std::string_view where, std::string_view role, const at::Tensor& tensor, const Group& group) {
  ESPALIER_CHECK_CONFIG(tensor.defined(), "{} on group '{}': the {} tensor is undefined; expected a dense CPU tensor",
                        where, group.name(), role);
  ESPALIER_CHECK_CONFIG(tensor.device().is_cpu() && tensor.layout() == at::kStrided,
                        "{} on group '{}': the {} tensor is {} on {}; expected a dense CPU tensor", where, group.name(),
                        role, tensor.layout() == at::kStrided ? "dense" : "not dense", tensor.device().str());
  ESPALIER_CHECK_CONFIG(
      detail::dtype_supported(tensor.scalar_type()),
      "{} on group '{}': the {} tensor has dtype {}; expected float64, float32, float16, bfloat16, int64, "
      "int32, int16, int8, uint8 or bool",
      where, group.name(), role, c10::toString(tensor.scalar_type()));
}

void check_same_dtype(std::string_view where, const at::Tensor& output, const at::Tensor& input, const Group& group) {
  ESPALIER_CHECK_CONFIG(output.scalar_type() == input.scalar_type(),
                        "{} on group '{}': output is {} but input is {}; both must have the same dtype", where,
                        group.name(), detail::dtype_name(output.scalar_type()),
                        detail::dtype_name(input.scalar_type()));
}

void check_reduction(std::string_view where, ReduceOp op, const at::Tensor& tensor, const Group& group) {
  const bool floating = at::isFloatingType(tensor.scalar_type());
  const bool bitwise = op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
  ESPALIER_CHECK_CONFIG(!(op == ReduceOp::mean && !floating) && !(bitwise && floating),
                        "{} on group '{}': {} of {}; {}", where, group.name(), detail::to_string(op),
                        detail::dtype_name(tensor.scalar_type()),
                        bitwise ? "bit_ operations need an integer or bool dtype" : "mean needs a floating dtype");
}

void check_peer(std::string_view where, std::string_view role, std::int64_t peer, const Group& group) {
  ESPALIER_CHECK_CONFIG(peer >= 0 && peer < group.size(),
                        "{} on group '{}': {} {} is not in the group; it has {} members, ranks 0 to {}", where,
                        group.name(), role, peer, group.size(), group.size() - 1);
}

void check_point_to_point(std::string_view where, const Group& group) {
  ESPALIER_CHECK_CONFIG(
      group.capabilities().point_to_point,
      "{} on group '{}': its backend has no point-to-point operations; use broadcast_ in a group of the two ranks",
      where, group.name());
}

// The same memory without the autograd graph, for those who only take its address. (detach() is an operator, which
// takes a small all_reduce's time again.)
at::Tensor memory_of(const at::Tensor& tensor) { return tensor.variable_data(); }

at::Tensor as_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

// The memory a backend reads: the tensor itself when it is contiguous, else a copy.
at::Tensor readable(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? memory_of(tensor) : tensor.detach().contiguous();
}

// The memory a backend writes: the tensor itself when it is contiguous, else room of its own, copied back by `finish`.
// (An in-place operation also reads it.)
at::Tensor writable(const at::Tensor& tensor, bool also_read, std::function<void()>& finish) {
  if (tensor.is_contiguous()) return memory_of(tensor);
  const at::Tensor view = tensor.detach();
  at::Tensor room = also_read ? view.contiguous() : at::empty_like(view, at::MemoryFormat::Contiguous);
  finish = [view, room, before = std::move(finish)] {
    if (before) before();
    view.copy_(room);
  };
  return room;
}

// output <- input, elements in order: what a group of one does.
Work copy_elements(at::Tensor& output, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  output.detach().copy_(input.detach().reshape(output.sizes()));
  return {};
}

// Elements for each member: equal shares, or rows of dimension 0 as `splits` says.
std::vector<std::int64_t> elems_for_members(std::string_view role, const at::Tensor& tensor, const Group& group,
                                            std::span<const std::int64_t> splits) {
  const std::int64_t size = group.size();
  if (splits.empty()) {
    ESPALIER_CHECK_CONFIG(
        tensor.numel() % size == 0,
        "all_to_all_into on group '{}': {} has {} elements, which do not divide into {} equal chunks; pass "
        "splits",
        group.name(), role, tensor.numel(), size);
    return std::vector<std::int64_t>(static_cast<std::size_t>(size), tensor.numel() / size);
  }
  const std::int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  std::int64_t sum = 0;
  for (const std::int64_t split : splits) sum += split;
  ESPALIER_CHECK_CONFIG(
      static_cast<std::int64_t>(splits.size()) == size && sum == rows &&
          std::all_of(splits.begin(), splits.end(), [](std::int64_t split) { return split >= 0; }),
      "all_to_all_into on group '{}': {} splits [{}] of {}; expected {} sizes of at least 0 that add up to "
      "{}, its rows",
      group.name(), splits.size(), fmt::join(splits, ","), role, size, rows);
  std::int64_t row_elems = 1;
  for (std::int64_t dim = 1; dim < tensor.dim(); ++dim) row_elems *= tensor.size(dim);
  std::vector<std::int64_t> elems;
  for (const std::int64_t split : splits) elems.push_back(split * row_elems);
  return elems;
}

// How one reduction goes over a backend that may lack its dtype or the mean: in which dtype and operation it travels.
struct Reduction {
  at::ScalarType dtype;
  ReduceOp op;
  bool divides;

  // What is left to do once `travels` holds the reduction that belongs into `memory`.
  std::function<void()> finish(at::Tensor memory, at::Tensor travels, std::int64_t size,
                               std::function<void()> copy_back) const {
    if (travels.is_same(memory) && !divides) return copy_back;
    return [memory = std::move(memory), travels = std::move(travels), by = divides ? size : 1,
            copy_back = std::move(copy_back)] {
      if (!travels.is_same(memory)) memory.copy_(travels);
      if (by != 1) memory.div_(by);
      if (copy_back) copy_back();
    };
  }
};

Reduction plan_reduction(at::ScalarType dtype, ReduceOp op, const Capabilities& can) {
  Reduction plan{dtype, op, false};
  if (dtype == at::kShort && !can.int16_reductions) plan.dtype = at::kInt;
  if (dtype == at::kBFloat16 && !can.bfloat16_reductions) plan.dtype = at::kFloat;
  if (op == ReduceOp::mean && !can.mean_reductions) {
    plan.op = ReduceOp::sum;
    plan.divides = true;
  }
  return plan;
}

}  // namespace

Work all_reduce_(at::Tensor& tensor, const Group& group, ReduceOp op) {
  begin("all_reduce_", group);
  check_tensor("all_reduce_", "reduced", tensor, group);
  check_reduction("all_reduce_", op, tensor, group);
  if (group.size() == 1) return {};
  std::function<void()> finish;
  at::Tensor memory = writable(tensor, true, finish);
  const Reduction plan = plan_reduction(memory.scalar_type(), op, group.capabilities());
  const at::Tensor travels = as_dtype(memory, plan.dtype);
  return finishing(group, group.state().communicator->all_reduce(travels, plan.op),
                   plan.finish(memory, travels, group.size(), std::move(finish)));
}

Work reduce_(at::Tensor& tensor, const Group& group, std::int64_t root, ReduceOp op) {
  begin("reduce_", group);
  check_tensor("reduce_", "reduced", tensor, group);
  check_reduction("reduce_", op, tensor, group);
  check_peer("reduce_", "root", root, group);
  if (group.size() == 1) return {};
  const Reduction plan = plan_reduction(tensor.scalar_type(), op, group.capabilities());
  if (group.rank() != root)
    return started(group,
                   group.state().communicator->reduce({}, as_dtype(readable(tensor), plan.dtype), plan.op, root));
  std::function<void()> finish;
  const at::Tensor memory = writable(tensor, true, finish);
  const at::Tensor travels = as_dtype(memory, plan.dtype);
  return finishing(group, group.state().communicator->reduce(travels, travels, plan.op, root),
                   plan.finish(memory, travels, group.size(), std::move(finish)));
}

Work broadcast_(at::Tensor& tensor, const Group& group, std::int64_t root) {
  begin("broadcast_", group);
  check_tensor("broadcast_", "broadcast", tensor, group);
  check_peer("broadcast_", "root", root, group);
  if (group.size() == 1) return {};
  if (group.rank() == root) return started(group, group.state().communicator->broadcast(readable(tensor), root));
  std::function<void()> finish;
  at::Tensor memory = writable(tensor, false, finish);
  return finishing(group, group.state().communicator->broadcast(memory, root), std::move(finish));
}

Work all_gather_into(at::Tensor& output, const at::Tensor& input, const Group& group) {
  begin("all_gather_into", group);
  check_tensor("all_gather_into", "output", output, group);
  check_tensor("all_gather_into", "input", input, group);
  check_same_dtype("all_gather_into", output, input, group);
  ESPALIER_CHECK_CONFIG(
      output.numel() == group.size() * input.numel(),
      "all_gather_into on group '{}': output has {} elements; expected {} members x {} elements of the "
      "input = {}",
      group.name(), output.numel(), group.size(), input.numel(), group.size() * input.numel());
  if (group.size() == 1) return copy_elements(output, input);
  std::function<void()> finish;
  at::Tensor memory = writable(output, false, finish);
  return finishing(group, group.state().communicator->all_gather(memory, readable(input)), std::move(finish));
}

Work all_gather_v(std::span<at::Tensor> outputs, const at::Tensor& input, const Group& group) {
  begin("all_gather_v", group);
  check_tensor("all_gather_v", "input", input, group);
  ESPALIER_CHECK_CONFIG(static_cast<std::int64_t>(outputs.size()) == group.size(),
                        "all_gather_v on group '{}': {} outputs; expected one for each of {} members", group.name(),
                        outputs.size(), group.size());
  std::int64_t largest = 0;
  for (const at::Tensor& output : outputs) {
    check_tensor("all_gather_v", "output", output, group);
    check_same_dtype("all_gather_v", output, input, group);
    largest = std::max(largest, output.numel());
  }
  at::Tensor& mine = outputs[static_cast<std::size_t>(group.rank())];
  ESPALIER_CHECK_CONFIG(
      mine.numel() == input.numel(),
      "all_gather_v on group '{}': output {} has {} elements but this rank's input has {}; they must be "
      "equal",
      group.name(), group.rank(), mine.numel(), input.numel());
  if (group.size() == 1) return copy_elements(mine, input);
  std::function<void()> finish;
  if (group.capabilities().uneven_all_gather) {
    std::vector<at::Tensor> memory;
    for (const at::Tensor& output : outputs) memory.push_back(writable(output, false, finish));
    return finishing(group, group.state().communicator->all_gather_v(std::move(memory), readable(input)),
                     std::move(finish));
  }
  // Everybody sends as much as the largest, and takes the beginning of what comes.
  const at::Tensor padded = at::empty({largest}, input.options());
  const at::Tensor all = at::empty({group.size(), largest}, input.options());
  const at::NoGradGuard no_grad;
  padded.narrow(0, 0, input.numel()).copy_(input.reshape({-1}));
  finish = [all, targets = std::vector<at::Tensor>(outputs.begin(), outputs.end())] {
    for (std::size_t member = 0; member < targets.size(); ++member) {
      const at::Tensor target = targets[member].detach();
      target.copy_(all.select(0, static_cast<std::int64_t>(member)).narrow(0, 0, target.numel()).view(target.sizes()));
    }
  };
  return finishing(group, group.state().communicator->all_gather(all, padded), std::move(finish));
}

Work gather_into(at::Tensor& output, const at::Tensor& input, const Group& group, std::int64_t root) {
  begin("gather_into", group);
  check_tensor("gather_into", "input", input, group);
  check_peer("gather_into", "root", root, group);
  if (group.rank() != root) return started(group, group.state().communicator->gather({}, readable(input), root));
  check_tensor("gather_into", "output", output, group);
  check_same_dtype("gather_into", output, input, group);
  ESPALIER_CHECK_CONFIG(
      output.numel() == group.size() * input.numel(),
      "gather_into on group '{}': the root's output has {} elements; expected {} members x {} elements of the "
      "input = {}",
      group.name(), output.numel(), group.size(), input.numel(), group.size() * input.numel());
  if (group.size() == 1) return copy_elements(output, input);
  std::function<void()> finish;
  const at::Tensor memory = writable(output, false, finish);
  return finishing(group, group.state().communicator->gather(memory, readable(input), root), std::move(finish));
}

Work scatter_into(at::Tensor& output, const at::Tensor& input, const Group& group, std::int64_t root) {
  begin("scatter_into", group);
  check_tensor("scatter_into", "output", output, group);
  check_peer("scatter_into", "root", root, group);
  at::Tensor from;
  if (group.rank() == root) {
    check_tensor("scatter_into", "input", input, group);
    check_same_dtype("scatter_into", output, input, group);
    ESPALIER_CHECK_CONFIG(
        input.numel() == group.size() * output.numel(),
        "scatter_into on group '{}': the root's input has {} elements; expected {} members x {} elements of the "
        "output = {}",
        group.name(), input.numel(), group.size(), output.numel(), group.size() * output.numel());
    if (group.size() == 1) return copy_elements(output, input);
    from = readable(input);
  }
  std::function<void()> finish;
  const at::Tensor memory = writable(output, false, finish);
  return finishing(group, group.state().communicator->scatter(memory, std::move(from), root), std::move(finish));
}

Work reduce_scatter_into(at::Tensor& output, const at::Tensor& input, const Group& group, ReduceOp op) {
  begin("reduce_scatter_into", group);
  check_tensor("reduce_scatter_into", "output", output, group);
  check_tensor("reduce_scatter_into", "input", input, group);
  check_same_dtype("reduce_scatter_into", output, input, group);
  check_reduction("reduce_scatter_into", op, input, group);
  ESPALIER_CHECK_CONFIG(
      input.numel() == group.size() * output.numel(),
      "reduce_scatter_into on group '{}': input has {} elements; expected {} members x {} elements of the "
      "output = {}",
      group.name(), input.numel(), group.size(), output.numel(), group.size() * output.numel());
  if (group.size() == 1) return copy_elements(output, input);
  std::function<void()> finish;
  const at::Tensor memory = writable(output, false, finish);
  const Reduction plan = plan_reduction(memory.scalar_type(), op, group.capabilities());
  const at::Tensor travels_in = as_dtype(readable(input), plan.dtype);
  const at::Tensor travels_out = plan.dtype == memory.scalar_type() ? memory : at::empty(memory.sizes(), plan.dtype);
  return finishing(group, group.state().communicator->reduce_scatter(travels_out, travels_in, plan.op),
                   plan.finish(memory, travels_out, group.size(), std::move(finish)));
}

Work all_to_all_into(at::Tensor& output, const at::Tensor& input, const Group& group,
                     std::span<const std::int64_t> output_splits, std::span<const std::int64_t> input_splits) {
  begin("all_to_all_into", group);
  check_tensor("all_to_all_into", "output", output, group);
  check_tensor("all_to_all_into", "input", input, group);
  check_same_dtype("all_to_all_into", output, input, group);
  std::vector<std::int64_t> output_elems = elems_for_members("output", output, group, output_splits);
  std::vector<std::int64_t> input_elems = elems_for_members("input", input, group, input_splits);
  const auto me = static_cast<std::size_t>(group.rank());
  ESPALIER_CHECK_CONFIG(
      output_elems[me] == input_elems[me],
      "all_to_all_into on group '{}': rank {} sends itself {} elements but receives {} from itself; both "
      "must be equal",
      group.name(), group.rank(), input_elems[me], output_elems[me]);
  if (group.size() == 1) return copy_elements(output, input);
  std::function<void()> finish;
  const at::Tensor memory = writable(output, false, finish);
  return finishing(
      group,
      group.state().communicator->all_to_all(memory, readable(input), std::move(output_elems), std::move(input_elems)),
      std::move(finish));
}

Work send(const at::Tensor& tensor, const Group& group, std::int64_t to, std::int64_t tag) {
  begin("send", group);
  check_tensor("send", "sent", tensor, group);
  check_peer("send", "receiver", to, group);
  check_point_to_point("send", group);
  ESPALIER_CHECK_CONFIG(to != group.rank(), "send on group '{}': rank {} cannot send to itself", group.name(), to);
  return started(group, group.state().communicator->send(readable(tensor), to, tag));
}

Work recv(at::Tensor& tensor, const Group& group, std::int64_t from, std::int64_t tag) {
  begin("recv", group);
  check_tensor("recv", "received", tensor, group);
  check_peer("recv", "sender", from, group);
  check_point_to_point("recv", group);
  ESPALIER_CHECK_CONFIG(from != group.rank(), "recv on group '{}': rank {} cannot receive from itself", group.name(),
                        from);
  std::function<void()> finish;
  at::Tensor memory = writable(tensor, false, finish);
  return finishing(group, group.state().communicator->recv(memory, from, tag), std::move(finish));
}

Work barrier(const Group& group) {
  begin("barrier", group);
  if (group.size() == 1) return {};
  return started(group, group.state().communicator->barrier());
}

}  // namespace espalier
