// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "espalier/comm/mesh.hpp"
#include "espalier/parallel/pipeline/executor.hpp"
#include "espalier/parallel/pipeline/pipeline_module.hpp"
#include "espalier/plan/schedule/schedules.hpp"
#include "espalier/train/fingerprint.hpp"
#include "espalier/train/lr_schedule.hpp"
#include "espalier/train/optimizers/optimizer.hpp"

namespace espalier {

struct EngineOptions {
  std::int64_t micro_batches = 1;  // a batch and data rank: gradients accumulate over them
  ScheduleKind schedule = one_f_one_b();
  LossFunction loss = {};
  LrSchedule lr = {};                     // unset: the optimizer's own learning rate
  ParameterRule parameter_settings = {};  // such as decay_matrices_only; unset: all parameters are trained alike
  double max_grad_norm = 0.0;             // clip the global gradient norm to this; 0: do not clip
  std::int64_t bucket_bytes = 25 << 20;   // of gradients averaged in one collective
  // What else the program knows of the run: data files with size and checksum, batch, seeds, precision.
  std::vector<Fact> facts = {};
};

// The same on every rank, but for the cost.
struct StepResult {
  double loss = 0.0;  // mean of all micro-batches' losses of the batch
  // Global, before clipping. Where the optimizer averages by itself, gradients differ between data ranks and this is
  // the root mean square of their norms, which is not below the norm of their mean.
  double grad_norm = 0.0;
  double lr = 0.0;
  bool skipped = false;                   // gradients were not finite: nothing was updated
  AveragingCost averaging = {};           // of gradients or momentum over data, on this rank
  std::int64_t averaging_fp32_bytes = 0;  // what a ring all-reduce of the same elements in float32 sends
};

// Trains a PipelineModule over its mesh, with or without a pipeline (pipe = 1). All calls are collective over the world
// and block. What comes out equals one process's: losses and gradients are means over all micro-batches of all data
// ranks.
class Engine {
 public:
  // Takes over the module's parameters: they become views of flat buffers. ConfigError, the same on every rank, for
  // options that cannot be used and where ranks differ in anything of the run's fingerprint, with both values and ranks.
  Engine(const Mesh& mesh, const PipelineModule& module, const OptimizerFactory& optimizer,
         const EngineOptions& options);
  Engine(Engine&&) noexcept;
  ~Engine();

  // One step. `source` gives this data rank's micro-batches 0 .. micro_batches-1.
  StepResult train_batch(const MicroBatchSource& source);

  // The mean loss over `num_micro_batches` micro-batches of every data rank, in evaluation mode. Changes nothing in
  // training.
  double eval_batch(const MicroBatchSource& source, std::int64_t num_micro_batches);

  std::int64_t step() const;            // steps taken, skipped ones included
  std::int64_t num_parameters() const;  // of the whole model, each once

  // What the run is made of, all stages' parameters included; the same on every rank.
  const Fingerprint& fingerprint() const;

  // Parameters of this stage. Their gradients (grad()) are those of the last train_batch, clipped, and averaged unless
  // the optimizer averages by itself.
  const PipelineModule& module() const;

  // Writes a checkpoint into `folder`/step-NNNNNNNN and points `folder`/latest to it: one file a layer and tied key,
  // under names free of ranks and stages, so that any layout can resume from it; and as many again as there are data
  // ranks where each of them has optimizer state of its own. A crash or full disk leaves the former one good. Keeps
  // nothing older than the one before. ConfigError, the same on every rank, when it cannot be written.
  void save(const std::string& folder) const;

  // Restores parameters, optimizer state and step from `folder`'s latest checkpoint, in this layout whatever the saving
  // one was. False when there is none. Bit-exact; only optimizer state that each data rank has of its own becomes the
  // mean when their number changes. ConfigError names the file and what is wrong with it.
  bool resume(const std::string& folder);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace espalier
