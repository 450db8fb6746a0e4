// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/schedules.hpp"
#include "tests/oracle/check.hpp"

namespace espalier::oracle {
namespace {

Json instruction(const Instruction& i) {
  if (!has_micro_batch(i.op)) return Json::array({code(i.op)});
  return {code(i.op), i.buffer, i.micro_batch};
}

Json stage(const StageProgram& program) {
  Json steps = Json::array();
  for (const auto& step : program.steps) {
    Json list = Json::array();
    for (const Instruction& i : step) list.push_back(instruction(i));
    steps.push_back(list);
  }
  return {{"buffers", program.num_buffers}, {"steps", steps}};
}

Json listing(const Schedule& schedule) {
  Json stages = Json::array();
  for (const StageProgram& program : schedule.stages) stages.push_back(stage(program));
  return {{"n_steps", schedule.stages.front().steps.size()}, {"per_stage", stages}};
}

Checker pipeline(ScheduleKind kind) {
  return {.answer = [kind = std::move(kind)](const Json& record) {
    const Json& in = record["in"];
    return listing(kind.generate(in["stages"], in["micro_batches"]));
  }};
}

// The reference's data-parallel program is the same on every stage; ours is made for one.
Json data_parallel(const Json& record) {
  Json answer = listing(data_parallel_only().generate(1, record["in"]["micro_batches"]));
  const Json program = answer["per_stage"].front();
  answer["per_stage"] = Json(record["in"]["stages"].get<std::size_t>(), program);
  return answer;
}

}  // namespace

Checkers schedules_checkers() {
  return {{"train", pipeline(one_f_one_b())},
          {"inference", pipeline(forward_only())},
          {"data_parallel", {.answer = data_parallel}}};
}

}  // namespace espalier::oracle
