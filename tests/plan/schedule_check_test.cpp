// SPDX-License-Identifier: Apache-2.0
// What the checker says about schedules that are wrong: by hand for the words, and by random
// damage, where its verdict is compared with that of a plain player that knows nothing but what an
// executor does.
#include "espalier/plan/schedule/check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "espalier/plan/schedule/schedules.hpp"

namespace espalier {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

Instruction at(Op op, int micro_batch, int buffer = 0) {
  return {.op = op, .buffer = buffer, .micro_batch = micro_batch};
}

// The only instruction of this op and micro-batch on a stage, to be damaged.
Instruction& find(Schedule& schedule, int stage, Op op, int micro_batch = -1) {
  for (auto& step : schedule.stages[stage].steps)
    for (Instruction& i : step)
      if (i.op == op && i.micro_batch == micro_batch) return i;
  throw std::logic_error("no such instruction");
}

// ---- words ----

TEST(Check, AcceptsItsOwnSchedulesAndCountsLiveMicroBatches) {
  EXPECT_THAT(check(one_f_one_b().generate(4, 8)).peak_live_micro_batches, ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(check(gpipe().generate(2, 3)).peak_live_micro_batches, ElementsAre(3, 3));
}

TEST(Check, ReportsAnEmptyScheduleAsAnError) {
  EXPECT_THAT(check({}).errors, ElementsAre("schedule: 0 stages and 0 micro-batches; it needs at least 1 of each"));
  Schedule no_steps{.name = "empty", .num_micro_batches = 1, .stages = {StageProgram{}}};
  EXPECT_THAT(check(no_steps).errors, ElementsAre("stage 0: 0 instructions cannot serve 1 micro-batches"));
  no_steps.num_micro_batches = INT64_MAX;
  EXPECT_FALSE(check(no_steps).ok());
}

TEST(Check, NamesInstructionsThatAreNotWellFormed) {
  Schedule schedule = one_f_one_b().generate(2, 2);
  find(schedule, 0, Op::forward, 1).micro_batch = 2;
  find(schedule, 1, Op::backward, 0).buffer = 7;
  find(schedule, 1, Op::reduce_grads).op = static_cast<Op>(99);
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("stage 0, step 2: F of micro-batch 2; micro-batches are 0 to 1",
                          "stage 1, step 2: B of micro-batch 0 in slot 7; the stage has 2 slots",
                          "stage 1, step 5: operation 99 does not exist"));
}

TEST(Check, NamesMissingRepeatedAndMisplacedInstructions) {
  Schedule schedule = one_f_one_b().generate(3, 4);
  std::erase(schedule.stages[1].steps[1], at(Op::forward, 0));
  schedule.stages[2].steps[3].push_back(at(Op::backward, 0));
  schedule.stages[1].steps[0].push_back(at(Op::load, 0));
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("stage 1, step 0: Ld of micro-batch 0 does not belong on stage 1 of 3",
                          "stage 1: F of micro-batch 0 is missing",
                          "stage 2, step 3: B of micro-batch 0 a second time, first at step 3"));
}

TEST(Check, NamesWhatComesBeforeWhatItNeeds) {
  Schedule schedule = one_f_one_b().generate(2, 2);
  auto& step = schedule.stages[1].steps[1];  // RA Ld F
  std::swap(step[0], step[2]);
  auto& last = schedule.stages[0].steps.back();  // RG B RT RD OS
  std::swap(last[2], last[3]);
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("stage 0, step 5: RD comes before RT (step 5), which it needs",
                          "stage 1, step 1: F of micro-batch 0 comes before Ld of micro-batch 0 "
                          "(step 1), which it needs",
                          "stage 1, step 1: F of micro-batch 0 comes before RA of micro-batch 0 "
                          "(step 1), which it needs"));
}

TEST(Check, NamesSlotsThatAreOverwritten) {
  Schedule schedule = gpipe().generate(1, 2);
  for (auto& step : schedule.stages[0].steps)
    for (Instruction& i : step)
      if (i.micro_batch == 1) i.buffer = 0;
  EXPECT_THAT(check(schedule).errors, Contains("stage 0, step 1: Ld of micro-batch 1 overwrites "
                                               "slot 0, which holds micro-batch 0 until B of "
                                               "micro-batch 0 at step 2"));
  schedule = gpipe().generate(1, 2);
  find(schedule, 0, Op::backward, 0).buffer = 1;
  EXPECT_THAT(check(schedule).errors,
              Contains("stage 0, step 2: B of micro-batch 0 in slot 1, but the micro-batch lies in slot 0"));
}

TEST(Check, NamesLinksWhoseEndsDisagree) {
  Schedule schedule = gpipe().generate(2, 2);
  auto& steps = schedule.stages[1].steps;  // RA0 Ld0 F0 | RA1 Ld1 F1: now both received early, in the wrong order
  steps[1].insert(steps[1].begin(), steps[2].front());
  steps[2].erase(steps[2].begin());
  EXPECT_THAT(check(schedule).errors, ElementsAre("link from stage 0 to stage 1, message 0: stage 0 step 0 sends "
                                                  "micro-batch 0 (SA), but stage 1 step 1 "
                                                  "expects micro-batch 1 (RA)"));
}

TEST(Check, TellsADeadlockAsTheCycleOfItsStages) {
  Schedule schedule = one_f_one_b().generate(2, 2);
  auto& step = schedule.stages[0].steps[3];  // RG0 SA1 B0: now both send first
  ASSERT_EQ(step[1].op, Op::send_activation);
  std::swap(step[0], step[1]);
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("deadlock: stage 0 at step 3 (SA of micro-batch 1) waits for stage 1, "
                          "but stage 1 at step 3 (SG of "
                          "micro-batch 0) waits for stage 0"));
}

TEST(Check, ReductionsAcrossStagesCanDeadlockToo) {
  Schedule schedule = one_f_one_b().generate(2, 1);
  auto& steps = schedule.stages[1].steps;  // - | RA Ld F | B | SG RT RD OS
  ASSERT_EQ(steps[3].front().op, Op::send_grad);
  std::swap(steps[3][0], steps[3][1]);
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("deadlock: stage 0 at step 3 (RG of micro-batch 0) waits for stage 1, "
                          "but stage 1 at step 3 (RT) "
                          "waits for stage 0"));
}

TEST(Check, ForwardOnlySchedulesMayNotUpdate) {
  Schedule schedule = forward_only().generate(2, 2);
  schedule.stages[0].steps.back().push_back({Op::optimizer_step});
  EXPECT_THAT(check(schedule).errors,
              ElementsAre("stage 0, step 2: OS does not belong on stage 0 of 2 of a schedule without backward"));
}

// ---- damage ----

// Plays a schedule as an executor would, with sends that wait; false when an instruction cannot be
// carried out, all stages wait, or something is left undone. Slow and obvious: one map of what has
// been done, no positions.
class Player {
 public:
  explicit Player(const Schedule& schedule) : schedule_(schedule), stages_(schedule.stages.size()) {
    for (std::size_t s = 0; s < stages_.size(); ++s)
      for (const auto& step : schedule.stages[s].steps)
        for (const Instruction& i : step) {
          stages_[s].line.push_back(i);
          training_ = training_ || i.op == Op::backward;
        }
  }

  bool plays() {
    try {
      while (advance_once()) {
      }
      return done();
    } catch (const std::string&) {
      return false;
    }
  }

 private:
  struct Stage {
    std::vector<Instruction> line;
    std::size_t next = 0;
    std::set<std::pair<Op, int>> did;  // (op, micro-batch)
    std::map<int, int> slots;          // slot -> micro-batch in it
    int loads = 0;
  };

  static void need(bool condition) {
    if (!condition) throw std::string("cannot be carried out");
  }
  int last() const { return static_cast<int>(stages_.size()) - 1; }
  bool did(int s, Op op, int m = -1) const { return stages_[s].did.contains({op, m}); }

  bool released(int s, int m) const {
    return did(s, Op::forward, m) && (s == last() || did(s, Op::send_activation, m)) &&
           (!training_ || (did(s, Op::backward, m) && (s == 0 || did(s, Op::send_grad, m))));
  }

  void carry_out(int s) {
    Stage& stage = stages_[s];
    const Instruction i = stage.line[stage.next];
    const int m = i.micro_batch;
    need(!did(s, i.op, m));
    const bool gradient = i.op == Op::recv_grad || i.op == Op::send_grad || i.op == Op::backward;
    need(!gradient || training_);
    if (has_micro_batch(i.op)) {
      need(m >= 0 && m < schedule_.num_micro_batches && i.buffer >= 0 && i.buffer < schedule_.stages[s].num_buffers);
      for (const auto& [slot, holds] : stage.slots) need((slot == i.buffer) == (holds == m));
      need(!released(s, m));
      stage.slots[i.buffer] = m;
    }
    const auto backwards_done = [&] {
      for (int k = 0; k < schedule_.num_micro_batches; ++k) need(did(s, Op::backward, k));
    };
    switch (i.op) {
      case Op::load:
        need((s == 0 || s == last()) && m == stage.loads++);
        break;
      case Op::recv_activation:
        need(s > 0);
        break;
      case Op::forward:
        need(s == 0 || did(s, Op::recv_activation, m));
        need((s > 0 && s < last()) || did(s, Op::load, m));
        break;
      case Op::send_activation:
        need(s < last() && did(s, Op::forward, m));
        break;
      case Op::recv_grad:
        need(s < last());
        break;
      case Op::backward:
        need(did(s, Op::forward, m) && (s == last() || did(s, Op::recv_grad, m)));
        break;
      case Op::send_grad:
        need(s > 0 && did(s, Op::backward, m));
        break;
      case Op::reduce_tied_grads:
        need(training_ && !did(s, Op::reduce_grads)), backwards_done();
        break;
      case Op::reduce_grads:
        need(training_ && (last() == 0 || did(s, Op::reduce_tied_grads))), backwards_done();
        break;
      case Op::optimizer_step:
        need(training_ && did(s, Op::reduce_grads));
        break;
    }
    stage.did.insert({i.op, m});
    if (has_micro_batch(i.op) && released(s, m)) stage.slots.erase(i.buffer);
    ++stage.next;
  }

  const Instruction* current(int s) const {
    return s >= 0 && s <= last() && stages_[s].next < stages_[s].line.size() ? &stages_[s].line[stages_[s].next]
                                                                             : nullptr;
  }

  // Both ends of a message together.
  bool meet(int s, int other, Op expected) {
    const Instruction *mine = current(s), *theirs = current(other);
    if (theirs == nullptr || theirs->op != expected) return false;
    need(mine->micro_batch == theirs->micro_batch);
    carry_out(s);
    carry_out(other);
    return true;
  }

  bool advance_once() {
    for (int s = 0; s <= last(); ++s) {
      const Instruction* i = current(s);
      if (i == nullptr) continue;
      switch (i->op) {
        case Op::send_activation:
          if (meet(s, s + 1, Op::recv_activation)) return true;
          break;
        case Op::send_grad:
          if (meet(s, s - 1, Op::recv_grad)) return true;
          break;
        case Op::recv_activation:
        case Op::recv_grad:
          break;  // their senders move them
        case Op::reduce_tied_grads:
        case Op::optimizer_step: {
          const Op op = i->op;
          bool all = true;
          for (int other = 0; other <= last(); ++other)
            all = all && current(other) != nullptr && current(other)->op == op;
          for (int other = 0; all && other <= last(); ++other) carry_out(other);
          if (all) return true;
          break;
        }
        case Op::load:
        case Op::forward:
        case Op::backward:
        case Op::reduce_grads:
          carry_out(s);
          return true;
      }
    }
    return false;
  }

  bool done() const {
    for (int s = 0; s <= last(); ++s) {
      if (current(s) != nullptr) return false;
      for (int m = 0; m < schedule_.num_micro_batches; ++m)
        if (!released(s, m)) return false;
      if (training_ && !did(s, Op::optimizer_step)) return false;
    }
    return true;
  }

  const Schedule& schedule_;
  std::vector<Stage> stages_;
  bool training_ = false;
};

struct Spot {
  std::size_t stage, step, place;
};

std::vector<Spot> spots(const Schedule& schedule) {
  std::vector<Spot> all;
  for (std::size_t s = 0; s < schedule.stages.size(); ++s)
    for (std::size_t step = 0; step < schedule.stages[s].steps.size(); ++step)
      for (std::size_t place = 0; place < schedule.stages[s].steps[step].size(); ++place)
        all.push_back({s, step, place});
  return all;
}

Instruction& get(Schedule& schedule, const Spot& spot) {
  return schedule.stages[spot.stage].steps[spot.step][spot.place];
}

std::vector<Schedule> samples() {
  std::vector<Schedule> all;
  for (std::int64_t stages : {1, 2, 3, 4})
    for (std::int64_t micro_batches : {1, 2, 3, 5})
      for (const ScheduleKind& kind : {gpipe(), one_f_one_b(), forward_only()})
        all.push_back(kind.generate(stages, micro_batches));
  all.push_back(data_parallel_only().generate(1, 3));
  return all;
}

std::string describe(const Schedule& schedule) {
  return schedule.name + " S=" + std::to_string(schedule.num_stages()) +
         " M=" + std::to_string(schedule.num_micro_batches);
}

// What crosses the link from stage s to s + 1, in both directions, in the order in which `stage`, one of its ends,
// takes it up: direction and micro-batch.
std::vector<std::pair<bool, int>> crossings(const Schedule& schedule, std::int64_t s, std::int64_t stage) {
  std::vector<std::pair<bool, int>> found;
  for (const auto& step : schedule.stages[stage].steps)
    for (const Instruction& i : step) {
      const bool down = i.op == (stage == s ? Op::send_activation : Op::recv_activation);
      const bool up = i.op == (stage == s ? Op::recv_grad : Op::send_grad);
      if (down || up) found.emplace_back(down, i.micro_batch);
    }
  return found;
}

TEST(Check, AcceptsOnlyLinksWhoseEndsTakeUpAllMessagesInOneOrder) {
  int refused = 0;
  for (const Schedule& schedule : samples()) {
    for (std::int64_t s = 0; s + 1 < schedule.num_stages(); ++s) {
      EXPECT_EQ(crossings(schedule, s, s), crossings(schedule, s, s + 1)) << describe(schedule);
    }
    // A gradient and an activation that cross on a link, exchanged at one end: each direction keeps its order.
    for (const Spot& spot : spots(schedule)) {
      auto& step = schedule.stages[spot.stage].steps[spot.step];
      if (spot.place + 1 >= step.size()) continue;
      const Op first = step[spot.place].op, second = step[spot.place + 1].op;
      if (!(first == Op::recv_grad && second == Op::send_activation) &&
          !(first == Op::send_grad && second == Op::recv_activation))
        continue;
      Schedule damaged = schedule;
      auto& pair = damaged.stages[spot.stage].steps[spot.step];
      std::swap(pair[spot.place], pair[spot.place + 1]);
      const auto link =
          first == Op::recv_grad ? static_cast<std::int64_t>(spot.stage) : static_cast<std::int64_t>(spot.stage) - 1;
      ASSERT_NE(crossings(damaged, link, link), crossings(damaged, link, link + 1));
      EXPECT_FALSE(check(damaged).ok()) << describe(schedule);
      ++refused;
    }
  }
  EXPECT_GT(refused, 10);
}

TEST(Check, FindsEveryRemovedInstruction) {
  for (const Schedule& schedule : samples()) {
    ASSERT_TRUE(Player(schedule).plays()) << describe(schedule);
    for (const Spot& spot : spots(schedule)) {
      Schedule damaged = schedule;
      const Instruction gone = get(damaged, spot);
      auto& step = damaged.stages[spot.stage].steps[spot.step];
      step.erase(step.begin() + static_cast<std::ptrdiff_t>(spot.place));
      const bool may_go = gone.op == Op::reduce_tied_grads && schedule.num_stages() == 1;
      EXPECT_EQ(check(damaged).ok(), may_go) << describe(schedule) << " without " << code(gone.op) << gone.micro_batch;
      // Without its only backward, a schedule of one micro-batch and stage is held to forward
      // rules: it fails by RT or RD.
    }
  }
}

TEST(Check, FindsEveryRepeatedInstructionWhereverItStands) {
  for (const Schedule& schedule : samples())
    for (const Spot& spot : spots(schedule))
      for (std::size_t step = 0; step < schedule.stages[spot.stage].steps.size(); ++step) {
        Schedule damaged = schedule;
        const Instruction twice = get(damaged, spot);
        damaged.stages[spot.stage].steps[step].push_back(twice);
        ASSERT_FALSE(check(damaged).ok())
            << describe(schedule) << " with another " << code(twice.op) << twice.micro_batch << " at step " << step;
      }
}

// Exchanging two instructions may be harmless (load and receive, say): the player decides.
TEST(Check, JudgesEveryExchangeOfTwoInstructionsAsThePlayerDoes) {
  int harmless = 0, harmful = 0;
  for (const Schedule& schedule : samples()) {
    const auto all = spots(schedule);
    for (std::size_t a = 0; a < all.size(); ++a)
      for (std::size_t b = a + 1; b < all.size() && all[b].stage == all[a].stage; ++b) {
        Schedule damaged = schedule;
        std::swap(get(damaged, all[a]), get(damaged, all[b]));
        const bool plays = Player(damaged).plays();
        ++(plays ? harmless : harmful);
        const ScheduleReport report = check(damaged);
        ASSERT_EQ(report.ok(), plays) << describe(schedule) << " stage " << all[a].stage << ": steps " << all[a].step
                                      << " and " << all[b].step << (report.ok() ? "" : ": " + report.errors.front());
      }
  }
  EXPECT_GT(harmful, 5 * harmless);
  EXPECT_GT(harmless, 0);
}

TEST(Check, JudgesRandomDamageAsThePlayerDoes) {
  std::mt19937 random(11);
  const auto originals = samples();
  int sound = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    Schedule damaged = originals[random() % originals.size()];
    for (unsigned blow = 0; blow <= random() % 3; ++blow) {
      const auto all = spots(damaged);
      const Spot spot = all[random() % all.size()];
      auto& program = damaged.stages[spot.stage];
      Instruction& hit = get(damaged, spot);
      switch (random() % 5) {
        case 0:
          hit.op = static_cast<Op>(random() % 10);
          break;
        case 1:
          hit.micro_batch += static_cast<int>(random() % 3) - 1;
          break;
        case 2:
          hit.buffer += static_cast<int>(random() % 3) - 1;
          break;
        case 3:
          program.num_buffers += static_cast<int>(random() % 3) - 1;
          break;
        case 4: {  // moved to another step
          const Instruction moved = hit;
          program.steps[spot.step].erase(program.steps[spot.step].begin() + static_cast<std::ptrdiff_t>(spot.place));
          auto& to = program.steps[random() % program.steps.size()];
          to.insert(to.begin() + static_cast<std::ptrdiff_t>(random() % (to.size() + 1)), moved);
          break;
        }
      }
    }
    // What has no micro-batch carries -1 in both fields; a change of op may break this, which is
    // not damage.
    for (auto& program : damaged.stages)
      for (auto& step : program.steps)
        for (Instruction& i : step)
          if (!has_micro_batch(i.op)) i.micro_batch = i.buffer = -1;
    const bool plays = Player(damaged).plays();
    sound += plays;
    const ScheduleReport report = check(damaged);
    ASSERT_EQ(report.ok(), plays) << "trial " << trial << ", " << describe(damaged)
                                  << (report.ok() ? "" : ": " + report.errors.front());
  }
  EXPECT_GT(sound, 500);
  EXPECT_LT(sound, 15'000);
}

}  // namespace
}  // namespace espalier
