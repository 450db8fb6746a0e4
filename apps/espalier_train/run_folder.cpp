// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/run_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/espalier_train/report.hpp"
#include "espalier/base/atomic_file.hpp"
#include "espalier/base/check.hpp"
#include "espalier/plan/schedule/render.hpp"
#include "espalier/plan/schedule/schedules.hpp"

namespace espalier::command {
namespace {

nlohmann::json describe(const TrainOptions& options, const Mesh& mesh) {
  const ModelOptions& model = options.model;
  const auto or_null = [](const auto& value) { return value ? nlohmann::json(*value) : nlohmann::json(); };
  return {{"layout", mesh.layout().to_string()},
          {"text", options.text},
          {"val_text", options.val_text},
          {"val_fraction", options.val_fraction},
          {"eval_every", or_null(options.eval_every)},
          {"eval_batches", options.eval_batches},
          {"layers", model.layers},
          {"hidden", model.hidden},
          {"heads", model.heads},
          {"context", model.context},
          {"batch", options.batch},
          {"micro_batches", model.micro_batches},
          {"steps", options.steps},
          {"lr", options.lr},
          {"min_lr", or_null(options.min_lr)},
          {"warmup", options.warmup},
          {"decay", options.decay},
          {"decay_steps", or_null(options.decay_steps)},
          {"weight_decay", options.weight_decay},
          {"decay_all", options.decay_all},
          {"betas", options.betas},
          {"clip", options.clip},
          {"optimizer", options.optimizer},
          {"freeze_step", options.freeze_step},
          {"schedule", model.schedule},
          {"partition", model.partition},
          {"precision", model.precision},
          {"recompute", model.recompute_every},
          {"p2p", model.point_to_point},
          {"backend", std::string(to_string(mesh.world().backend()))},
          {"seed", model.seed},
          {"threads", model.threads}};
}

}  // namespace

RunFolder::RunFolder(const TrainOptions& options, const Mesh& mesh, std::int64_t first_step)
    : options_(options), mesh_(mesh) {
  if (options.out.empty() || mesh.world().rank() != 0) return;
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  ESPALIER_CHECK_CONFIG(!error, "--out {}: the folder cannot be made: {}", options.out, error.message());
  const std::string metrics = path(options, "metrics.csv");
  if (first_step > 0 && !std::filesystem::exists(metrics)) {
    fmt::print(stderr, "espalier train: {} is not there; a new one begins with step {}\n", metrics, first_step);
  }
  write_file_atomically(path(options, "config.json"), describe(options, mesh).dump(2) + "\n");
  metrics_ = std::make_unique<MetricsWriter>(metrics, first_step);
  events_ = std::make_unique<EventFile>(options.out, first_step);
}

void RunFolder::append(const MetricsRow& row) {
  if (!metrics_) return;
  metrics_->append(row);
  std::vector<Scalar> scalars{{"train/loss", row.loss},
                              {"train/grad_norm", row.grad_norm},
                              {"train/lr", row.lr},
                              {"train/tokens_per_s", row.tokens_per_s},
                              {"train/skipped", row.skipped ? 1.0 : 0.0}};
  if (row.val_loss) {
    scalars.push_back({"validation/loss", *row.val_loss});
    scalars.push_back({"validation/perplexity", perplexity(*row.val_loss)});
  }
  events_->append(row.step, scalars);
}

double RunFolder::best_val_loss() const {
  double best = std::numeric_limits<double>::infinity();
  if (!metrics_) return best;
  for (const MetricsRow& row : metrics_->rows()) best = std::min(best, row.val_loss.value_or(best));
  return best;
}

void RunFolder::write_report(const PipelineModule& module, const Outcome& outcome) {
  if (!metrics_) return;
  Report report;
  report.title = fmt::format("GPT, {} parameters", outcome.num_parameters);
  report.made_with = "espalier " ESPALIER_VERSION;
  report.metrics = metrics_->rows();
  report.total_seconds = outcome.seconds;
  for (const char* axis : {"pipe", "data"}) report.axes.push_back({axis, mesh_.size(axis)});
  const auto counts = count_parameters(module.layers());
  for (std::int64_t stage = 0; stage < module.num_stages(); ++stage) {
    Report::Stage row;
    for (std::int64_t i = module.cuts()[stage]; i < module.cuts()[stage + 1]; ++i) {
      row.layers += (row.layers.empty() ? "" : ", ") + module.layers()[i].type_name;
      row.num_parameters += counts[i];
    }
    report.stages.push_back(row);
  }
  for (std::int64_t rank = 0; rank < mesh_.world().size(); ++rank) {
    report.places.push_back({rank, mesh_.layout().coordinate("pipe", rank), mesh_.layout().coordinate("data", rank)});
  }
  const Schedule schedule =
      schedule_by_name(options_.model.schedule).generate(module.num_stages(), options_.model.micro_batches);
  report.schedule_name = schedule.name;
  report.schedule_svg = render_svg(timeline(simulate(schedule, {})), schedule.name);
  const auto settings = describe(options_, mesh_);
  for (const auto& [name, value] : settings.items()) {
    if (value.is_null() || (value.is_array() && value.empty())) continue;
    report.settings.push_back({name, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  report.prompt = outcome.prompt;
  report.sample = outcome.sample;
  write_file_atomically(path(options_, "report.html"), render_report(report));
}

std::string RunFolder::path(const TrainOptions& options, const std::string& name) {
  return (std::filesystem::path(options.out) / name).string();
}

}  // namespace espalier::command
