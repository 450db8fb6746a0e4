// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/espalier_train/event_file.hpp"
#include "apps/espalier_train/metrics.hpp"
#include "apps/espalier_train/train_options.hpp"
#include "espalier/comm/mesh.hpp"
#include "espalier/parallel/pipeline/pipeline_module.hpp"

namespace espalier::command {

// What rank 0 writes into --out while a run goes on: configuration, metrics, events, report. Does nothing on other
// ranks or without --out. ConfigError for what cannot be written.
class RunFolder {
 public:
  RunFolder(const TrainOptions& options, const Mesh& mesh, std::int64_t first_step);

  void append(const MetricsRow& row);

  // The lowest validation loss of the run so far; infinite where there is none, and on other ranks.
  double best_val_loss() const;

  struct Outcome {
    double seconds = 0.0;
    std::int64_t num_parameters = 0;
    std::string prompt = {};
    std::string sample = {};  // empty: there is none
  };
  void write_report(const PipelineModule& module, const Outcome& outcome);

  // Of a file or folder in --out.
  static std::string path(const TrainOptions& options, const std::string& name);

 private:
  const TrainOptions& options_;
  const Mesh& mesh_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<EventFile> events_;
};

}  // namespace espalier::command
