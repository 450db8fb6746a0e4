// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "espalier/parallel/pipeline/pipeline_module.hpp"
#include "espalier/plan/schedule/instruction.hpp"

namespace espalier {

struct MicroBatch {
  Tensors inputs;   // of the first layer
  Tensors targets;  // handed to the loss with the last layer's outputs
};

// Gives micro-batch m of the current batch. First and last stage ask their own copy for the same m: it must be the same
// function of m on both.
using MicroBatchSource = std::function<MicroBatch(std::int64_t micro_batch)>;

// A scalar: the mean over the micro-batch.
using LossFunction = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;

// What the executor does at the instructions that are not about one micro-batch.
struct StepActions {
  std::function<void()> reduce_tied_grads = [] {};
  std::function<void()> reduce_grads = [] {};
  std::function<void()> optimizer_step = [] {};
};

// Executes one stage's part of a schedule: the whole interpreter of pipeline instructions. Collective over the pipe
// axis; blocks. Gradients accumulate into the parameters, scaled by 1 / num_micro_batches. A schedule without backward
// runs without grad mode. Returns the sum of the micro-batches' losses on the last stage, 0 on others. A CommError says
// during which instruction it came.
double execute(const PipelineModule& module, const Schedule& schedule, const MicroBatchSource& source,
               const LossFunction& loss, const StepActions& actions = {});

}  // namespace espalier
