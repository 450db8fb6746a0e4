// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

// What a pipeline stage can be told to do. Schedules are lists of these; the executor knows nothing
// else.
enum class Op : std::uint8_t {
  load,             // draw the micro-batch from the data source (first and last stage)
  forward,          // run the stage's layers
  backward,         // gradients of input and weights
  send_activation,  // to the next stage
  recv_activation,  // from the previous stage
  send_grad,        // to the previous stage
  recv_grad,        // from the next stage
  reduce_tied_grads,
  reduce_grads,
  optimizer_step,
};

// Short code as used in listings and pictures: Ld F B SA RA SG RG RT RD OS.
std::string_view code(Op op);

// Whether the instruction belongs to one micro-batch (the last three do not).
bool has_micro_batch(Op op);

struct Instruction {
  Op op;
  std::int32_t buffer = -1;       // slot that holds the micro-batch's tensors on this stage; -1 without one
  std::int32_t micro_batch = -1;  // -1 without one
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

// One stage's part: what it does step by step (instructions of a step run in order), and how many
// slots it needs.
struct StageProgram {
  std::int64_t num_buffers = 0;
  std::vector<std::vector<Instruction>> steps;
};

// A whole schedule: stages[s] is what stage s executes.
struct Schedule {
  std::string name;
  std::int64_t num_micro_batches = 0;
  std::vector<StageProgram> stages;

  std::int64_t num_stages() const { return static_cast<std::int64_t>(stages.size()); }
};

// A named generator: makes the schedule for any number of stages and micro-batches (both >= 1,
// ConfigError otherwise).
struct ScheduleKind {
  std::string name;
  std::function<Schedule(std::int64_t num_stages, std::int64_t num_micro_batches)> generate;
};

}  // namespace espalier
