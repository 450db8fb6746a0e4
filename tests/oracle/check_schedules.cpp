// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/schedule/compute_schedules.hpp"
#include "espalier/plan/schedule/compute_simulation.hpp"
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

Json orders(const ComputeSchedule& schedule) {
  Json ranks = Json::array();
  for (const auto& steps : schedule.ranks) {
    std::string order;
    for (const ComputeStep& step : steps) order += (order.empty() ? "" : " ") + to_string(step);
    ranks.push_back(order);
  }
  return ranks;
}

// The table is the order of the forwards.
Json interleaved(const Json& record) {
  const Json& in = record["in"];
  const std::int64_t chunks = in["chunks"];
  const ComputeSchedule schedule =
      interleaved_1f1b(in["ranks"], in["micro_batches"], {.num_chunks = chunks, .group_size = in["group"]});
  Json table = Json::array();
  for (const ComputeStep& step : schedule.ranks.front()) {
    if (step.pass == Pass::forward) table.push_back({step.micro_batch, step.chunk});
  }
  const double part = 1.0 / static_cast<double>(chunks);
  const ComputeSimulation simulation = simulate(schedule, {.forward = part, .backward = 2 * part});
  return {{"table", table}, {"order", orders(schedule)}, {"span", simulation.span}, {"ideal", simulation.ideal}};
}

Json dualpipev(const Json& record) {
  const ComputeSchedule schedule = dualpipe_v(record["in"]["ranks"], record["in"]["micro_batches"]);
  return {{"order", orders(schedule)}, {"span", simulate(schedule, {}).span}, {"peak_live", check(schedule).peak_live}};
}

// The warm-up is the order's, which is compared whole.
Json without_warmup(const Json& record) {
  Json expected = expected_of(record);
  expected.erase("warmup");
  return expected;
}

}  // namespace

Checkers schedules_checkers() {
  return {{"train", pipeline(one_f_one_b())},
          {"inference", pipeline(forward_only())},
          {"data_parallel", {.answer = data_parallel}},
          {"interleaved", {.answer = interleaved, .expected = without_warmup}},
          {"dualpipev", {.answer = dualpipev}}};
}

}  // namespace espalier::oracle
