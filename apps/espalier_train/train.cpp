// SPDX-License-Identifier: Apache-2.0
// `espalier train`: the reference GPT on text files. Every rank runs this; rank 0 prints and writes.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/espalier_train/commands.hpp"
#include "apps/espalier_train/generate.hpp"
#include "apps/espalier_train/html_text.hpp"
#include "apps/espalier_train/metrics.hpp"
#include "apps/espalier_train/options.hpp"
#include "apps/espalier_train/progress.hpp"
#include "apps/espalier_train/report.hpp"
#include "apps/espalier_train/self_launch.hpp"
#include "espalier/base/atomic_file.hpp"
#include "espalier/base/check.hpp"
#include "espalier/comm/together.hpp"
#include "espalier/models/gpt/byte_text.hpp"
#include "espalier/plan/data/sampler.hpp"
#include "espalier/plan/schedule/render.hpp"
#include "espalier/plan/seed.hpp"
#include "espalier/train/engine.hpp"

namespace espalier::command {
namespace {

using detail::together;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

nlohmann::json describe(const TrainOptions& options, const Mesh& mesh) {
  const ModelOptions& model = options.model;
  return {{"layout", mesh.layout().to_string()},
          {"text", options.text},
          {"layers", model.layers},
          {"hidden", model.hidden},
          {"heads", model.heads},
          {"context", model.context},
          {"batch", options.batch},
          {"micro_batches", model.micro_batches},
          {"steps", options.steps},
          {"lr", options.lr},
          {"warmup", options.warmup},
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

// The output folder of rank 0: metrics, configuration, report. Does nothing on other ranks or without --out.
class Output {
 public:
  Output(const TrainOptions& options, const Mesh& mesh, std::int64_t first_step) : options_(options), mesh_(mesh) {
    if (options.out.empty() || mesh.world().rank() != 0) return;
    std::error_code error;
    std::filesystem::create_directories(options.out, error);
    ESPALIER_CHECK_CONFIG(!error, "--out {}: the folder cannot be made: {}", options.out, error.message());
    write_file_atomically(path("config.json"), describe(options, mesh).dump(2) + "\n");
    metrics_ = std::make_unique<MetricsWriter>(path("metrics.csv"), first_step);
  }

  void append(const MetricsRow& row) {
    if (metrics_) metrics_->append(row);
  }

  void write_report(const Engine& engine, double seconds, const std::string& prompt, const std::string& sample,
                    std::int64_t parameters) {
    if (!metrics_) return;
    const PipelineModule& module = engine.module();
    Report report;
    report.title = fmt::format("GPT, {} parameters", parameters);
    report.made_with = "espalier " ESPALIER_VERSION;
    report.metrics = read_metrics(path("metrics.csv"));
    report.total_seconds = seconds;
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
    report.schedule_svg = render_svg(simulate(schedule, {}), schedule.name);
    const auto settings = describe(options_, mesh_);
    for (const auto& [name, value] : settings.items())
      report.settings.push_back({name, value.is_string() ? value.get<std::string>() : value.dump()});
    report.prompt = prompt;
    report.sample = sample;
    write_file_atomically(path("report.html"), render_report(report));
  }

  std::string path(const std::string& name) const { return (std::filesystem::path(options_.out) / name).string(); }

 private:
  const TrainOptions& options_;
  const Mesh& mesh_;
  std::unique_ptr<MetricsWriter> metrics_;
};

void train(const TrainOptions& options) {
  const ModelOptions& model = options.model;
  at::set_num_threads(model.threads);
  WorldOptions world_options = model.world();
  world_options.postmortem = (std::filesystem::path(options.out) / "postmortem.json").string();
  const World world = World::from_environment(world_options);
  const Mesh mesh(world, model.layout_spec());
  const ByteText text = together(world.group(), [&] { return ByteText(options.text, model.context); });
  const Sampler sampler({.num_samples = text.num_samples(),
                         .batch = options.batch,
                         .data = mesh.size("data"),
                         .micro_batches = model.micro_batches,
                         .seed = derive_seed(model.seed, "data")});
  const PipelineModule module(mesh, gpt_layers(model.gpt()),
                              {.partition = model.partition_method(),
                               .seed = model.seed,
                               .recompute_every = model.recompute_every,
                               .point_to_point = point_to_point_by_name(model.point_to_point)});
  Engine engine(mesh, module, options.optimizer_factory(),
                {.micro_batches = model.micro_batches,
                 .schedule = schedule_by_name(model.schedule),
                 .loss = next_token_loss,
                 .lr = warmup_cosine_lr(options.lr, options.warmup, std::max(options.steps, options.warmup)),
                 .max_grad_norm = options.clip});
  const std::string checkpoints = (std::filesystem::path(options.out) / "checkpoints").string();
  if (options.resume) {
    ESPALIER_CHECK_CONFIG(engine.resume(checkpoints), "--resume: there is no checkpoint in {}", checkpoints);
  }
  const std::int64_t parameters = engine.num_parameters();
  const auto output = together(world.group(), [&] { return std::make_unique<Output>(options, mesh, engine.step()); });

  const bool speaks = world.rank() == 0;
  Progress progress(speaks, options.steps, engine.step());
  if (speaks) {
    fmt::print("{} parameters, {}, {} over {}, {} bytes of text\n", parameters, mesh.layout().to_string(),
               world.size() == 1 ? "one rank" : fmt::format("{} ranks", world.size()), to_string(world.backend()),
               text.num_bytes());
  }
  const std::int64_t data_rank = mesh.coordinate("data");
  const auto begin = Clock::now();
  const double waited_before = world.wait_seconds();
  while (engine.step() < options.steps) {
    const std::int64_t step = engine.step();
    const auto step_begin = Clock::now();
    const StepResult result = engine.train_batch([&](std::int64_t micro_batch) -> MicroBatch {
      const ByteText::Batch batch = text.batch(sampler.micro_batch(step, data_rank, micro_batch));
      return {{batch.input}, {batch.target}};
    });
    const double seconds = seconds_since(step_begin);
    const double tokens_per_s = static_cast<double>(options.batch * model.context) / seconds;
    output->append({.step = step,
                    .loss = result.loss,
                    .grad_norm = result.grad_norm,
                    .lr = result.lr,
                    .tokens_per_s = tokens_per_s,
                    .averaging_bytes = result.averaging.bytes_sent,
                    .averaging_fp32_bytes = result.averaging_fp32_bytes,
                    .averaging_share = result.averaging.seconds / seconds});
    progress.show({step, result.loss, tokens_per_s});
    const bool last = engine.step() == options.steps;
    if (!options.out.empty() && (last || engine.step() % options.save_every == 0)) engine.save(checkpoints);
  }

  if (speaks && world.size() > 1) {
    fmt::print("\n{:.1f} s, of which rank 0 waited {:.1f} s for other ranks\n", seconds_since(begin),
               world.wait_seconds() - waited_before);
  }

  const std::string prompt = "\n";
  const std::string sample =
      generate(module, prompt, options.sample, model.context, 0.8, derive_seed(model.seed, "sample"));
  if (speaks && !sample.empty()) fmt::print("\n{}\n", readable(sample));
  together(world.group(), [&] { output->write_report(engine, seconds_since(begin), prompt, sample, parameters); });
  if (speaks && !options.out.empty()) fmt::print("\nreport: {}\n", output->path("report.html"));
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("train", "Train the reference GPT on text files");
  const auto options = std::make_shared<TrainOptions>();
  options->add_to(*sub);
  sub->callback([options] { run_as_ranks("train", options->check(), [&] { train(*options); }); });
}

}  // namespace espalier::command
