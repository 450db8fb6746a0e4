// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/espalier_train/options.hpp"
#include "espalier/models/gpt/byte_text.hpp"
#include "espalier/train/fingerprint.hpp"
#include "espalier/train/lr_schedule.hpp"
#include "espalier/train/optimizers/optimizer.hpp"

namespace espalier::command {

struct TrainOptions {
  ModelOptions model;
  std::vector<std::string> text;
  std::vector<std::string> val_text;
  double val_fraction = 0.0;  // of the text's bytes, its end
  std::optional<std::int64_t> eval_every;
  std::int64_t eval_batches = 20;  // 0: all there are
  std::int64_t batch = 16;
  std::int64_t steps = 400;
  double lr = 3e-3;
  std::optional<double> min_lr;
  std::int64_t warmup = 20;
  std::string decay = "cosine";
  std::optional<std::int64_t> decay_steps;  // of wsd
  double weight_decay = 0.1;
  bool decay_all = false;  // norms and biases too
  std::array<double, 2> betas{0.9, 0.95};
  double clip = 1.0;
  std::int64_t max_skipped = 5;  // steps in a row; 0: any number
  std::string optimizer = "adamw";
  std::int64_t freeze_step = 100;  // of onebit-adam
  std::string out;                 // empty: nothing is written
  std::int64_t save_every = 50;
  bool resume = false;
  std::int64_t log_every = 0;  // steps between lines of progress; 0: as time passes
  std::int64_t sample = 200;   // bytes of text at the end
  double grace = 30.0;         // seconds that ranks have to save after a signal

  void add_to(CLI::App& app);
  std::optional<std::int64_t> check() const;

  bool validates() const { return !val_text.empty() || val_fraction > 0.0; }
  bool evaluates_after(std::int64_t steps_taken) const;
  double final_lr() const;
  std::int64_t steps_of_decay() const;  // of wsd
  LrSchedule lr_schedule() const;
  // What is odd about the schedule though it can be followed; empty: nothing.
  std::string lr_warning() const;
  OptimizerFactory optimizer_factory() const;
  std::chrono::milliseconds stop_time() const;
};

struct Texts {
  ByteText training;
  std::optional<ByteText> validation;
};
// ConfigError for files that cannot be used, and for too little text to validate with.
Texts open_texts(const TrainOptions& options);

// What the engine cannot know of the run: its data, and what is done when. Not which folders are used.
std::vector<Fact> facts_of(const TrainOptions& options, const Texts& texts);

}  // namespace espalier::command
