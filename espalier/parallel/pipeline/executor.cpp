// SPDX-License-Identifier: Apache-2.0
// Each buffer slot of the stage's program holds one micro-batch's tensors between its instructions:
//   inputs    what the stage was given: leaves, so that their gradients can be sent back
//   outputs   what its layers made of them; on the last stage one scalar, the loss
//   gradients of those outputs that require one, as received
#include "espalier/parallel/pipeline/executor.hpp"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "espalier/base/check.hpp"
#include "espalier/comm/world_state.hpp"
#include "espalier/parallel/pipeline/message.hpp"

namespace espalier {
namespace {

struct Slot {
  MicroBatch loaded;
  Tensors inputs;
  Tensors outputs;
  Tensors gradients;
};

Tensors requiring_grad(const Tensors& tensors) {
  Tensors result;
  std::ranges::copy_if(tensors, std::back_inserter(result), [](const at::Tensor& t) { return t.requires_grad(); });
  return result;
}

class Executor {
 public:
  Executor(const PipelineModule& module, const Schedule& schedule, const MicroBatchSource& source,
           const LossFunction& loss, const StepActions& actions)
      : module_(module),
        source_(source),
        loss_(loss),
        actions_(actions),
        stage_(module.stage()),
        num_micro_batches_(schedule.num_micro_batches),
        slots_(schedule.stages[stage_].num_buffers),
        transport_(module.mesh().world().state().core->transport),
        messages_(module.links(), module.partitions_activations() ? module.mesh().group("tensor") : Group()) {}

  double run(const StageProgram& program) {
    for (const auto& step : program.steps) {
      for (const Instruction& instruction : step) {
        const std::string where = fmt::format(
            "stage {}, {}{}", stage_, code(instruction.op),
            has_micro_batch(instruction.op) ? fmt::format(" of micro-batch {}", instruction.micro_batch) : "");
        if (transport_ != nullptr) transport_->note(where);
        try {
          execute(instruction);
        } catch (const CommError& error) {
          throw CommError(fmt::format("{}: {}", where, error.what()));
        }
      }
    }
    messages_.wait();
    if (transport_ != nullptr) transport_->note("");
    return loss_sum_;
  }

 private:
  void execute(const Instruction& instruction) {
    switch (instruction.op) {
      case Op::load:
        return load(instruction);
      case Op::forward:
        return forward(slot(instruction));
      case Op::backward:
        return backward(slot(instruction));
      case Op::send_activation:
        return send_activation(instruction);
      case Op::recv_activation:
        return recv_activation(instruction);
      case Op::send_grad:
        return send_grad(instruction);
      case Op::recv_grad:
        return recv_grad(instruction);
      case Op::reduce_tied_grads:
        return actions_.reduce_tied_grads();
      case Op::reduce_grads:
        return actions_.reduce_grads();
      case Op::optimizer_step:
        return actions_.optimizer_step();
    }
  }

  Slot& slot(const Instruction& instruction) { return slots_[instruction.buffer]; }
  static MessageTag tag(const Instruction& instruction) { return {.micro_batch = instruction.micro_batch}; }

  void load(const Instruction& instruction) {
    Slot& at = slot(instruction);
    at.loaded = source_(instruction.micro_batch);
    if (module_.first_stage()) at.inputs = at.loaded.inputs;
  }

  void forward(Slot& at) {
    at.outputs = module_.forward(at.inputs);
    if (!module_.last_stage()) return;
    const at::Tensor loss = loss_(at.outputs, at.loaded.targets);
    ESPALIER_CHECK_CONFIG(loss.numel() == 1,
                          "loss function: it returned {} elements; expected one, the mean over the micro-batch",
                          loss.numel());
    loss_sum_ += loss.item<double>();
    at.outputs = {loss};
    at.loaded = {};
    if (!c10::GradMode::is_enabled()) at = {};
  }

  void backward(Slot& at) {
    if (module_.last_stage()) {
      const at::Tensor& loss = at.outputs.front();
      at.gradients = {
          at::full(loss.sizes(), 1.0 / static_cast<double>(num_micro_batches_), loss.options().requires_grad(false))};
    }
    const Tensors outputs = requiring_grad(at.outputs);
    if (!outputs.empty()) torch::autograd::backward(outputs, at.gradients);
    at.outputs.clear();
    at.gradients.clear();
    if (module_.first_stage()) at = {};
  }

  void send_activation(const Instruction& instruction) {
    Slot& at = slot(instruction);
    messages_.send_described(at.outputs, Neighbour::next, tag(instruction));
    if (!c10::GradMode::is_enabled()) at = {};
  }

  void recv_activation(const Instruction& instruction) {
    slot(instruction).inputs = messages_.recv_described(Neighbour::previous, tag(instruction));
  }

  // One gradient for each input that requires one; zeros where the stage did not use it.
  void send_grad(const Instruction& instruction) {
    Slot& at = slot(instruction);
    for (const at::Tensor& input : requiring_grad(at.inputs)) {
      messages_.send(input.grad().defined() ? input.grad() : at::zeros_like(input), Neighbour::previous,
                     tag(instruction));
    }
    at = {};
  }

  void recv_grad(const Instruction& instruction) {
    Slot& at = slot(instruction);
    for (const at::Tensor& output : requiring_grad(at.outputs)) {
      at.gradients.push_back(at::empty_like(output.detach(), at::MemoryFormat::Contiguous));
    }
    messages_.recv(at.gradients, Neighbour::next, tag(instruction));
  }

  const PipelineModule& module_;
  const MicroBatchSource& source_;
  const LossFunction& loss_;
  const StepActions& actions_;
  std::int64_t stage_;
  std::int64_t num_micro_batches_;
  std::vector<Slot> slots_;
  std::shared_ptr<detail::Transport> transport_;  // null in a world of one
  detail::StageMessages messages_;
  double loss_sum_ = 0.0;
};

bool has_backward(const StageProgram& program) {
  return std::ranges::any_of(program.steps, [](const auto& step) {
    return std::ranges::any_of(step, [](const Instruction& instruction) { return instruction.op == Op::backward; });
  });
}

}  // namespace

double execute(const PipelineModule& module, const Schedule& schedule, const MicroBatchSource& source,
               const LossFunction& loss, const StepActions& actions) {
  ESPALIER_CHECK_CONFIG(schedule.num_stages() == module.num_stages(),
                        "pipeline: schedule {} is for {} stages, but the layout has {}", schedule.name,
                        schedule.num_stages(), module.num_stages());
  const StageProgram& program = schedule.stages[module.stage()];
  const c10::AutoGradMode grad_mode(has_backward(program));
  return Executor(module, schedule, source, loss, actions).run(program);
}

}  // namespace espalier
