// SPDX-License-Identifier: Apache-2.0
// `espalier train`: the reference GPT on text files. Every rank runs this; rank 0 prints and writes.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "apps/espalier_train/commands.hpp"
#include "apps/espalier_train/generate.hpp"
#include "apps/espalier_train/html_text.hpp"
#include "apps/espalier_train/metrics.hpp"
#include "apps/espalier_train/progress.hpp"
#include "apps/espalier_train/run_folder.hpp"
#include "apps/espalier_train/self_launch.hpp"
#include "apps/espalier_train/stop_signal.hpp"
#include "apps/espalier_train/train_options.hpp"
#include "apps/espalier_train/validation.hpp"
#include "apps/exit_codes.hpp"
#include "espalier/base/check.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/together.hpp"
#include "espalier/plan/data/sampler.hpp"
#include "espalier/plan/launch/environment.hpp"
#include "espalier/plan/seed.hpp"
#include "espalier/train/engine.hpp"

namespace espalier::command {
namespace {

using detail::together;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// What some rank knows before a step and all must: the ConfigError of one becomes everybody's, and the signal that one
// was sent (0: none) is returned on all. One small exchange.
std::int64_t agree_to_go_on(const Group& world, std::int64_t signal, const std::optional<std::string>& error) {
  at::Tensor found = at::tensor({signal, std::int64_t{error.has_value()}}, at::kLong);
  all_reduce_(found, world, ReduceOp::max).wait();
  if (found[1].item<std::int64_t>() != 0) agree_no_error(world, error);
  return found[0].item<std::int64_t>();
}

// One training run on this rank.
class Run {
 public:
  explicit Run(const TrainOptions& options);

  // To the last step; or, when a rank is sent SIGINT or SIGTERM, to the end of the step and CLI::RuntimeError.
  void go();

 private:
  void take_steps();
  std::vector<MicroBatch> next_micro_batches() const;
  void take_step(const std::vector<MicroBatch>& micro_batches);
  void validate(MetricsRow& row);
  void save();
  [[noreturn]] void stop(std::int64_t signal);
  [[noreturn]] void diverge(const std::string& how);
  void write_report(const std::string& prompt, const std::string& sample);
  std::string path(const std::string& name) const { return RunFolder::path(options_, name); }

  const TrainOptions& options_;
  World world_;
  Mesh mesh_;
  Texts texts_;
  Sampler sampler_;
  PipelineModule module_;
  Engine engine_;
  std::optional<Validation> validation_;
  bool speaks_;
  std::int64_t num_parameters_;
  std::unique_ptr<RunFolder> folder_;
  std::unique_ptr<Progress> progress_;
  double best_val_loss_ = 0.0;
  std::int64_t num_skipped_ = 0;
  std::int64_t skipped_in_a_row_ = 0;
  std::int64_t saved_step_ = -1;
  Clock::time_point begin_ = Clock::now();
};

WorldOptions world_options(const TrainOptions& options) {
  WorldOptions world = options.model.world();
  if (!options.out.empty()) world.postmortem = RunFolder::path(options, "postmortem.json");
  return world;
}

Run::Run(const TrainOptions& options)
    : options_(options),
      world_(World::from_environment(world_options(options))),
      mesh_(world_, options.model.layout_spec()),
      texts_(together(world_.group(), [&] { return open_texts(options); })),
      sampler_({.num_samples = texts_.training.num_samples(),
                .batch = options.batch,
                .data = mesh_.size("data"),
                .micro_batches = options.model.micro_batches,
                .seed = derive_seed(options.model.seed, "data")}),
      module_(mesh_, gpt_layers(options.model.gpt()),
              {.partition = options.model.partition_method(),
               .seed = options.model.seed,
               .recompute_every = options.model.recompute_every,
               .point_to_point = point_to_point_by_name(options.model.point_to_point)}),
      engine_(mesh_, module_, options.optimizer_factory(),
              {.micro_batches = options.model.micro_batches,
               .schedule = schedule_by_name(options.model.schedule),
               .loss = next_token_loss,
               .lr = options.lr_schedule(),
               .parameter_settings = options.decay_all ? ParameterRule() : decay_matrices_only,
               .max_grad_norm = options.clip,
               .facts = together(world_.group(), [&] { return facts_of(options, texts_); })}),
      speaks_(world_.rank() == 0) {
  if (texts_.validation) {
    validation_.emplace(
        *texts_.validation,
        ValidationOptions{
            .batch = options.batch, .micro_batches = options.model.micro_batches, .max_batches = options.eval_batches},
        mesh_);
  }
  if (options.resume) {
    ESPALIER_CHECK_CONFIG(engine_.resume(path("checkpoints")), "--resume: there is no checkpoint in {}",
                          path("checkpoints"));
    saved_step_ = engine_.step();
  }
  num_parameters_ = engine_.num_parameters();
  folder_ = together(world_.group(), [&] { return std::make_unique<RunFolder>(options, mesh_, engine_.step()); });
  at::Tensor best = at::tensor({folder_->best_val_loss()}, at::kDouble);
  all_reduce_(best, world_.group(), ReduceOp::min).wait();
  best_val_loss_ = best.item<double>();
  progress_ = std::make_unique<Progress>(speaks_, options.steps, engine_.step(), options.log_every);
}

void Run::go() {
  if (speaks_) {
    fmt::print("{} parameters, {}, {} over {}, {} bytes of text{}\n", num_parameters_, mesh_.layout().to_string(),
               world_.size() == 1 ? "one rank" : fmt::format("{} ranks", world_.size()), to_string(world_.backend()),
               texts_.training.num_bytes(),
               texts_.validation ? fmt::format(", {} to validate with", texts_.validation->num_bytes()) : "");
    if (const std::string warning = options_.lr_warning(); !warning.empty())
      fmt::print(stderr, "espalier train: {}\n", warning);
  }
  begin_ = Clock::now();
  const double waited_before = world_.wait_seconds();
  take_steps();
  if (speaks_ && world_.size() > 1) {
    fmt::print("\n{:.1f} s, of which rank 0 waited {:.1f} s for other ranks\n", seconds_since(begin_),
               world_.wait_seconds() - waited_before);
  }

  const std::string prompt = "\n";
  const std::optional<std::string> sample = generate(module_, prompt, options_.sample, options_.model.context, 0.8,
                                                     derive_seed(options_.model.seed, "sample"));
  if (!sample) diverge("no sample can be drawn: what the model gives is not finite");
  if (speaks_ && !sample->empty()) fmt::print("\n{}\n", readable(*sample));
  write_report(prompt, *sample);
}

// Also after the last one: a signal that came during it ends the run before its sample.
void Run::take_steps() {
  const bool alone = discover_ranks(process_variables()).launcher == Launcher::alone;
  const StopSignal stop_signal(/*second_ends=*/alone);
  while (true) {
    std::vector<MicroBatch> micro_batches;
    std::optional<std::string> error;
    try {
      if (engine_.step() < options_.steps) micro_batches = next_micro_batches();
    } catch (const ConfigError& trouble) {
      error = trouble.what();
    }
    if (const std::int64_t signal = agree_to_go_on(world_.group(), stop_signal.number(), error)) stop(signal);
    if (engine_.step() >= options_.steps) return;
    take_step(micro_batches);
  }
}

std::vector<MicroBatch> Run::next_micro_batches() const {
  std::vector<std::int64_t> samples;
  for (std::int64_t m = 0; m < options_.model.micro_batches; ++m) {
    const auto some = sampler_.micro_batch(engine_.step(), mesh_.coordinate("data"), m);
    samples.insert(samples.end(), some.begin(), some.end());
  }
  return micro_batches_of(texts_.training, samples, sampler_.micro_batch_size(), module_);
}

void Run::take_step(const std::vector<MicroBatch>& micro_batches) {
  const std::int64_t step = engine_.step();
  const auto begin = Clock::now();
  const StepResult result =
      engine_.train_batch([&](std::int64_t m) { return micro_batches[static_cast<std::size_t>(m)]; });
  const double seconds = seconds_since(begin);
  const double tokens_per_s = static_cast<double>(options_.batch * options_.model.context) / seconds;
  num_skipped_ += result.skipped ? 1 : 0;
  skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  MetricsRow row{.step = step,
                 .loss = result.loss,
                 .grad_norm = result.grad_norm,
                 .lr = result.lr,
                 .tokens_per_s = tokens_per_s,
                 .averaging_bytes = result.averaging.bytes_sent,
                 .averaging_fp32_bytes = result.averaging_fp32_bytes,
                 .averaging_share = result.averaging.seconds / seconds,
                 .skipped = result.skipped};
  progress_->show({step, result.loss, tokens_per_s, num_skipped_});
  if (options_.evaluates_after(engine_.step())) validate(row);
  folder_->append(row);
  if (options_.max_skipped > 0 && skipped_in_a_row_ >= options_.max_skipped) {
    diverge(
        fmt::format("{} steps in a row were skipped, as their gradients were not finite (loss {}, gradient norm {}, "
                    "learning rate {} in the last)",
                    skipped_in_a_row_, result.loss, result.grad_norm, result.lr));
  }
  if (engine_.step() == options_.steps || engine_.step() % options_.save_every == 0) save();
}

// Every rank has the same loss, so all save the best or none does.
void Run::validate(MetricsRow& row) {
  const double loss = validation_->loss(engine_);
  row.val_loss = loss;
  const bool best = loss < best_val_loss_;
  progress_->say(row.step, fmt::format("validation loss {:.4f}  perplexity {:.4g}{}", loss, perplexity(loss),
                                       best ? "  the best so far" : ""));
  if (!best) return;
  best_val_loss_ = loss;
  if (!options_.out.empty()) engine_.save(path("best"));
}

void Run::save() {
  if (options_.out.empty() || saved_step_ == engine_.step()) return;
  engine_.save(path("checkpoints"));
  saved_step_ = engine_.step();
}

void Run::stop(std::int64_t signal) {
  save();
  write_report("", "");
  if (speaks_) {
    fmt::print(stderr, "espalier train: stopped by a signal after step {} of {}; {}\n", engine_.step(), options_.steps,
               options_.out.empty()
                   ? "nothing is saved, as there is no --out"
                   : fmt::format("it is saved in {}: go on with the same options and --resume", path("checkpoints")));
  }
  throw CLI::RuntimeError(static_cast<int>(128 + signal));
}

// Nothing more is saved: the checkpoints there are may be worth going on from.
void Run::diverge(const std::string& how) {
  write_report("", "");
  if (speaks_) {
    fmt::print(stderr,
               "espalier train: diverged after step {} of {}: {}; lower --lr, set --clip or lengthen --warmup{}\n",
               engine_.step(), options_.steps, how,
               options_.out.empty() ? "" : fmt::format(", and go on from a checkpoint in {}", options_.out));
  }
  throw CLI::RuntimeError(kDiverged);
}

void Run::write_report(const std::string& prompt, const std::string& sample) {
  together(world_.group(), [&] {
    folder_->write_report(
        module_,
        {.seconds = seconds_since(begin_), .num_parameters = num_parameters_, .prompt = prompt, .sample = sample});
  });
  if (speaks_ && !options_.out.empty()) fmt::print("\nreport: {}\n", path("report.html"));
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("train", "Train the reference GPT on text files");
  const auto options = std::make_shared<TrainOptions>();
  options->add_to(*sub);
  sub->callback(
      [options] { run_as_ranks("train", options->check(), [&] { Run(*options).go(); }, options->stop_time()); });
}

}  // namespace espalier::command
