// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/timeline.hpp"

#include "espalier/base/check.hpp"

namespace espalier {
namespace {

Timeline::Look look_of(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return Timeline::Look::forward;
    case Pass::backward:
      return Timeline::Look::backward;
    case Pass::backward_input:
      return Timeline::Look::backward_input;
    case Pass::backward_weight:
      return Timeline::Look::backward_weight;
  }
  throw InternalError("timeline: there is no such pass");
}

std::string_view name_of(Timeline::Look look) {
  switch (look) {
    case Timeline::Look::forward:
      return "forward";
    case Timeline::Look::backward:
      return "backward";
    case Timeline::Look::backward_input:
      return "backward to the input";
    case Timeline::Look::backward_weight:
      return "backward to the weights";
  }
  throw InternalError("timeline: there is no such look");
}

}  // namespace

Timeline timeline(const Simulation& simulation) {
  Timeline result{.row_name = "stage", .rows = {}, .span = simulation.span, .ideal = simulation.ideal};
  for (const auto& stage : simulation.stages) {
    auto& row = result.rows.emplace_back();
    for (const Interval& interval : stage) {
      const Instruction& i = interval.instruction;
      const auto look = i.op == Op::forward ? Timeline::Look::forward : Timeline::Look::backward;
      row.push_back({.label = fmt::format("{}{}", code(i.op), i.micro_batch),
                     .what = fmt::format("{} of micro-batch {}", name_of(look), i.micro_batch),
                     .look = look,
                     .begin = interval.begin,
                     .end = interval.end});
    }
  }
  return result;
}

Timeline timeline(const ComputeSimulation& simulation) {
  Timeline result{.row_name = "rank", .rows = {}, .span = simulation.span, .ideal = simulation.ideal};
  for (const auto& rank : simulation.ranks) {
    auto& row = result.rows.emplace_back();
    for (const ComputeInterval& interval : rank) {
      const ComputeStep& step = interval.step;
      const auto look = look_of(step.pass);
      row.push_back(
          {.label = to_string(step),
           .what = fmt::format("{} of micro-batch {} on chunk {}", name_of(look), step.micro_batch, step.chunk),
           .look = look,
           .begin = interval.begin,
           .end = interval.end});
    }
  }
  return result;
}

}  // namespace espalier
