// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/espalier_train/metrics.hpp"

namespace espalier::command {

// What a training run has to show.
struct Report {
  struct Axis {
    std::string name;
    std::int64_t size = 1;
  };
  struct Stage {
    std::string layers;  // in words: "wte, block 0 to 1"
    std::int64_t num_parameters = 0;
  };
  struct Place {
    std::int64_t rank = 0;
    std::int64_t stage = 0;
    std::int64_t data_rank = 0;
  };
  struct Setting {
    std::string name;
    std::string value;
  };

  std::string title = {};      // "GPT, 842 496 parameters"
  std::string made_with = {};  // "espalier 0.1.0, LibTorch 2.13.0"
  std::vector<MetricsRow> metrics = {};
  double total_seconds = 0.0;
  std::vector<Axis> axes = {};
  std::vector<Stage> stages = {};
  std::vector<Place> places = {};
  std::string schedule_name = {};
  std::string schedule_svg = {};  // an <svg> element; empty: none is shown
  std::vector<Setting> settings = {};
  std::string prompt = {};
  std::string sample = {};  // what the model wrote after the prompt: any bytes
};

// One HTML page that needs nothing else: inline style and pictures, no address, no script. Light
// and dark; well-formed as XML too. Values that are not finite leave gaps in the curves.
std::string render_report(const Report& report);

}  // namespace espalier::command
