// SPDX-License-Identifier: Apache-2.0
#include "apps/espalier_train/train_options.hpp"

#include <algorithm>
#include <cmath>

#include "espalier/base/check.hpp"
#include "espalier/models/gpt/gpt.hpp"
#include "espalier/train/optimizers/onebit_adam.hpp"

namespace espalier::command {
namespace {

constexpr double kFinalFraction = 0.1;  // of the peak, where --min-lr does not say
constexpr std::int64_t kEvalEvery = 50;

void check_range(const char* name, double value, bool is_in_range, const char* expected) {
  ESPALIER_CHECK_CONFIG(std::isfinite(value) && is_in_range, "{} is {}; expected {}", name, value, expected);
}

void check_schedule(const TrainOptions& options) {
  check_range("--lr", options.lr, options.lr >= 0.0, "a finite number >= 0");
  ESPALIER_CHECK_CONFIG(options.warmup >= 0, "--warmup is {}; expected 0 or more", options.warmup);
  const std::string& decay = options.decay;
  ESPALIER_CHECK_CONFIG(decay == "cosine" || decay == "linear" || decay == "constant" || decay == "wsd",
                        "--decay is '{}'; expected cosine, linear, constant or wsd", decay);
  if (options.min_lr) {
    ESPALIER_CHECK_CONFIG(decay != "constant", "--min-lr with --decay constant, which does not fall; leave out one");
    ESPALIER_CHECK_CONFIG(*options.min_lr >= 0.0 && *options.min_lr <= options.lr,
                          "--min-lr is {}; expected a number from 0 to --lr {}", *options.min_lr, options.lr);
  }
  if (!options.decay_steps) return;
  ESPALIER_CHECK_CONFIG(decay == "wsd", "--decay-steps with --decay {}; expected --decay wsd", decay);
  ESPALIER_CHECK_CONFIG(*options.decay_steps >= 0 && options.warmup + *options.decay_steps <= options.steps,
                        "--warmup {} and --decay-steps {} do not fit into --steps {}; expected 0 to {} steps of decay",
                        options.warmup, *options.decay_steps, options.steps,
                        std::max<std::int64_t>(options.steps - options.warmup, 0));
}

void check_validation(const TrainOptions& options) {
  check_range("--val-fraction", options.val_fraction, options.val_fraction >= 0.0 && options.val_fraction < 1.0,
              "a number from 0 to below 1");
  ESPALIER_CHECK_CONFIG(options.val_text.empty() || options.val_fraction == 0.0,
                        "--val-text and --val-fraction {}: both say what to validate with; give one",
                        options.val_fraction);
  ESPALIER_CHECK_CONFIG(options.eval_batches >= 0, "--eval-batches is {}; expected 0 or more", options.eval_batches);
  if (!options.eval_every) return;
  check_positive("--eval-every", *options.eval_every);
  ESPALIER_CHECK_CONFIG(options.validates(),
                        "--eval-every {}: there is nothing to validate with; give --val-text or --val-fraction",
                        *options.eval_every);
}

}  // namespace

void TrainOptions::add_to(CLI::App& app) {
  model.add_to(app);
  const auto option = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->capture_default_str();
  };
  app.add_option("--text", text, "Text files to learn from; their bytes are the tokens")->required()->expected(1, -1);
  app.add_option("--val-text", val_text, "Text files to validate with, which are not learnt from")->expected(1, -1);
  option("--val-fraction", val_fraction, "Or: this fraction of the text, its end, is set aside to validate with");
  app.add_option("--eval-every", eval_every, "Steps between validations; the last step validates too [50]");
  option("--eval-batches", eval_batches, "Batches of a validation, the same every time; 0: all there are");
  option("--batch", batch, "Sequences of one step, over all data ranks");
  option("--steps", steps, "How many steps");
  option("--lr", lr, "Peak learning rate");
  app.add_option("--min-lr", min_lr, "Learning rate at the end [a tenth of --lr]");
  option("--warmup", warmup, "Steps until the peak");
  option("--decay", decay,
         "How it falls then: cosine, linear, constant (not at all) or wsd (a line over the last --decay-steps)");
  app.add_option("--decay-steps", decay_steps, "wsd: steps of the fall at the end [a fifth of --steps]");
  option("--clip", clip, "Largest global gradient norm; 0: do not clip");
  option("--max-skipped", max_skipped,
         "Steps in a row that may be skipped, as their gradients are not finite, until the run ends; 0: any number");
  option("--optimizer", optimizer, "adamw or onebit-adam, which sends one bit a parameter over data");
  option("--weight-decay", weight_decay, "Of the optimizer, decoupled");
  app.add_flag("--decay-all", decay_all, "Weight decay for norms and biases too, not for matrices alone");
  option("--betas", betas, "Of the optimizer: 0.9,0.95")->delimiter(',');
  option("--freeze-step", freeze_step, "onebit-adam: updates until its variance is frozen and its momentum compressed");
  app.add_option("--out", out,
                 "Folder for metrics.csv, TensorBoard's events, config.json, checkpoints and report.html");
  option("--save-every", save_every, "Steps between checkpoints");
  app.add_flag("--resume", resume, "Go on from the checkpoint in --out");
  option("--log-every", log_every, "Steps between lines of progress; 0: as time passes");
  option("--sample", sample, "Bytes of text to write at the end");
  option("--grace", grace, "Seconds that ranks have to save and end after Ctrl-C or SIGTERM");
}

std::optional<std::int64_t> TrainOptions::check() const {
  check_positive("--batch", batch);
  check_positive("--steps", steps);
  check_positive("--save-every", save_every);
  ESPALIER_CHECK_CONFIG(log_every >= 0, "--log-every is {}; expected 0 or more", log_every);
  ESPALIER_CHECK_CONFIG(sample >= 0, "--sample is {}; expected 0 or more", sample);
  check_range("--grace", grace, grace >= 0.0 && grace <= 1e6, "a number of seconds from 0 to 1e6");
  check_schedule(*this);
  check_validation(*this);
  check_range("--clip", clip, clip >= 0.0, "a finite number >= 0");
  ESPALIER_CHECK_CONFIG(max_skipped >= 0, "--max-skipped is {}; expected 0 or more", max_skipped);
  check_range("--weight-decay", weight_decay, weight_decay >= 0.0, "a finite number >= 0");
  for (const double beta : betas)
    check_range("--betas", beta, beta >= 0.0 && beta < 1.0, "two numbers from 0 to below 1");
  ESPALIER_CHECK_CONFIG(optimizer == "adamw" || optimizer == "onebit-adam",
                        "--optimizer is '{}'; expected adamw or onebit-adam", optimizer);
  check_positive("--freeze-step", freeze_step);
  ESPALIER_CHECK_CONFIG(!resume || !out.empty(), "--resume needs --out, the folder of the run to go on with");
  const auto ranks = model.check();
  const std::int64_t data = model.layout_spec().data;
  if (data != kRest) {
    ESPALIER_CHECK_CONFIG(
        batch % (data * model.micro_batches) == 0,
        "--batch {} does not divide into data {} x {} micro-batches = {} pieces; the nearest multiples are {} and {}",
        batch, data, model.micro_batches, data * model.micro_batches,
        std::max<std::int64_t>(batch / (data * model.micro_batches), 1) * data * model.micro_batches,
        (batch / (data * model.micro_batches) + 1) * data * model.micro_batches);
  }
  return ranks;
}

bool TrainOptions::evaluates_after(std::int64_t steps_taken) const {
  return validates() && (steps_taken == steps || steps_taken % eval_every.value_or(kEvalEvery) == 0);
}

double TrainOptions::final_lr() const { return decay == "constant" ? lr : min_lr.value_or(kFinalFraction * lr); }

std::int64_t TrainOptions::steps_of_decay() const {
  return decay_steps.value_or(std::min(steps / 5, std::max(steps, warmup) - warmup));
}

LrSchedule TrainOptions::lr_schedule() const {
  const std::int64_t total = std::max(steps, warmup);
  const double fraction = min_lr && lr > 0.0 ? *min_lr / lr : kFinalFraction;
  if (decay == "cosine") return warmup_cosine_lr(lr, warmup, total, fraction);
  if (decay == "linear") return warmup_linear_lr(lr, warmup, total, fraction);
  if (decay == "constant") return warmup_constant_lr(lr, warmup);
  return warmup_stable_decay_lr(lr, warmup, total, steps_of_decay(), fraction);
}

std::string TrainOptions::lr_warning() const {
  if (warmup <= steps) return "";
  return fmt::format(
      "--warmup {} is longer than --steps {}: the learning rate ends at {:.6g} and never reaches --lr {}; give --warmup "
      "{} or less, or more steps",
      warmup, steps, lr_schedule()(steps - 1), lr, steps);
}

OptimizerFactory TrainOptions::optimizer_factory() const {
  if (optimizer == "adamw") return adamw({.beta1 = betas[0], .beta2 = betas[1], .weight_decay = weight_decay});
  return onebit_adam({.beta1 = betas[0],
                      .beta2 = betas[1],
                      .weight_decay = weight_decay,
                      .freeze_step = freeze_step,
                      .momentum_mask = gpt_momentum_mask});
}

std::chrono::milliseconds TrainOptions::stop_time() const {
  return std::chrono::milliseconds(std::llround(1e3 * grace));
}

Texts open_texts(const TrainOptions& options) {
  const std::int64_t context = options.model.context;
  Texts texts{ByteText(options.text, context), {}};
  if (!options.val_text.empty()) {
    texts.validation = ByteText(options.val_text, context);
  } else if (options.val_fraction > 0.0) {
    const std::int64_t bytes = texts.training.num_bytes();
    const auto aside = static_cast<std::int64_t>(std::floor(options.val_fraction * static_cast<double>(bytes)));
    texts.validation = texts.training.part(bytes - aside, aside);
    texts.training = texts.training.part(0, bytes - aside);
  }
  if (texts.validation) {
    ESPALIER_CHECK_CONFIG(
        texts.validation->num_samples() >= options.batch,
        "the validation text has {} bytes, {} sequences of --context {}, fewer than --batch {}; give more of it, or a "
        "smaller batch",
        texts.validation->num_bytes(), texts.validation->num_samples(), context, options.batch);
  }
  return texts;
}

std::vector<Fact> facts_of(const TrainOptions& options, const Texts& texts) {
  const auto text = [](const ByteText& one) {
    return fmt::format("{} bytes, {:016x}", one.num_bytes(), one.fingerprint());
  };
  const auto choice = [](const char* name, std::string value) {
    return Fact{name, std::move(value), FactScope::ranks};
  };
  return {{"text", text(texts.training)},
          {"context", fact_text(options.model.context)},
          {"heads", fact_text(options.model.heads)},
          {"batch", fact_text(options.batch)},
          {"lr", fact_text(options.lr)},
          {"min_lr", fact_text(options.final_lr())},
          {"warmup", fact_text(options.warmup)},
          {"decay", options.decay},
          choice("decay_steps", options.decay == "wsd" ? fact_text(options.steps_of_decay()) : "none"),
          choice("steps", fact_text(options.steps)),
          choice("max_skipped", fact_text(options.max_skipped)),
          choice("val_text", texts.validation ? text(*texts.validation) : "none"),
          choice("eval_every", fact_text(options.eval_every.value_or(kEvalEvery))),
          choice("eval_batches", fact_text(options.eval_batches)),
          choice("out", options.out.empty() ? "none" : "a folder"),
          choice("save_every", fact_text(options.save_every)),
          choice("resume", fact_text(options.resume)),
          choice("sample", fact_text(options.sample))};
}

}  // namespace espalier::command
