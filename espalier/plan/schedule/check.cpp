// SPDX-License-Identifier: Apache-2.0
// Four proofs, each resting on the ones before: instructions are well formed; each stage by itself
// is complete, in order, and keeps its slots; both ends of each link list the same micro-batches;
// played with sends that wait for their receive, every stage reaches its end. In the play,
// reductions of tied gradients and optimizer steps (norm and overflow are agreed there) wait for
// all stages; gradient reductions concern copies of one stage only.
#include "espalier/plan/schedule/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "espalier/plan/schedule/listing.hpp"

namespace espalier {
namespace {

constexpr std::size_t kNumOps = static_cast<std::size_t>(Op::optimizer_step) + 1;
constexpr std::array kMicroBatchOps{Op::load,      Op::recv_activation, Op::forward,  Op::send_activation,
                                    Op::recv_grad, Op::backward,        Op::send_grad};
constexpr std::array kFinalOps{Op::reduce_tied_grads, Op::reduce_grads, Op::optimizer_step};

// Within a stage and micro-batch, the first must come before the second.
struct Order {
  Op before;
  Op after;
};
constexpr std::array kOrders{
    Order{Op::load, Op::forward},     Order{Op::recv_activation, Op::forward}, Order{Op::forward, Op::send_activation},
    Order{Op::forward, Op::backward}, Order{Op::recv_grad, Op::backward},      Order{Op::backward, Op::send_grad}};

std::size_t index(Op op) { return static_cast<std::size_t>(op); }

std::string name(const Instruction& i) {
  return has_micro_batch(i.op) ? fmt::format("{} of micro-batch {}", code(i.op), i.micro_batch)
                               : std::string(code(i.op));
}

class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule) {}

  ScheduleReport run() {
    if (!well_formed()) return std::move(report_);
    for (std::int64_t s = 0; s < num_stages(); ++s) check_stage(s);
    for (std::int64_t s = 0; s + 1 < num_stages(); ++s) {
      check_link(s, Op::send_activation, s + 1);
      check_link(s + 1, Op::send_grad, s);
    }
    if (report_.ok()) play();
    if (!report_.ok()) report_.peak_live_micro_batches.clear();
    return std::move(report_);
  }

 private:
  std::int64_t num_stages() const { return schedule_.num_stages(); }
  std::int64_t num_micro_batches() const { return schedule_.num_micro_batches; }

  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) {
    report_.errors.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  // Fills lines_ and training_. Whatever follows may index by op, micro-batch and slot.
  bool well_formed() {
    if (num_stages() < 1 || num_micro_batches() < 1) {
      error("schedule: {} stages and {} micro-batches; it needs at least 1 of each", num_stages(), num_micro_batches());
      return false;
    }
    for (std::int64_t s = 0; s < num_stages(); ++s) {
      const StageProgram& program = schedule_.stages[s];
      lines_.push_back(in_one_line(program));
      for (const auto& [i, step] : lines_.back()) {
        if (index(i.op) >= kNumOps) {
          error("stage {}, step {}: operation {} does not exist", s, step, index(i.op));
          continue;
        }
        training_ = training_ || i.op == Op::backward;
        if (!has_micro_batch(i.op)) continue;
        if (i.micro_batch < 0 || i.micro_batch >= num_micro_batches())
          error("stage {}, step {}: {}; micro-batches are 0 to {}", s, step, name(i), num_micro_batches() - 1);
        if (i.buffer < 0 || i.buffer >= program.num_buffers)
          error("stage {}, step {}: {} in slot {}; the stage has {} slots", s, step, name(i), i.buffer,
                program.num_buffers);
      }
      if (static_cast<std::int64_t>(lines_.back().size()) < num_micro_batches())
        error("stage {}: {} instructions cannot serve {} micro-batches", s, lines_.back().size(), num_micro_batches());
    }
    return report_.ok();
  }

  // How often `op` belongs on stage s, for each micro-batch.
  std::int64_t expected(Op op, std::int64_t s) const {
    const bool first = s == 0, last = s == num_stages() - 1;
    switch (op) {
      case Op::load:
        return first || last;
      case Op::recv_activation:
        return !first;
      case Op::send_activation:
        return !last;
      case Op::recv_grad:
        return training_ && !last;
      case Op::send_grad:
        return training_ && !first;
      case Op::forward:
        return 1;
      case Op::backward:
      case Op::reduce_tied_grads:
      case Op::reduce_grads:
      case Op::optimizer_step:
        return training_;
    }
    return 0;
  }

  // Position in the stage's line of each op and micro-batch; -1: not there.
  using Positions = std::array<std::vector<std::int64_t>, kNumOps>;

  void check_stage(std::int64_t s) {
    const auto& line = lines_[s];
    Positions at;
    for (Op op : kMicroBatchOps) at[index(op)].assign(num_micro_batches(), -1);
    for (Op op : kFinalOps) at[index(op)].assign(1, -1);
    const std::size_t errors_before = report_.errors.size();
    for (std::size_t p = 0; p < line.size(); ++p) {
      const auto& [i, step] = line[p];
      std::int64_t& seen = at[index(i.op)][has_micro_batch(i.op) ? i.micro_batch : 0];
      if (expected(i.op, s) == 0)
        error("stage {}, step {}: {} does not belong on stage {} of {}{}", s, step, name(i), s, num_stages(),
              training_ ? "" : " of a schedule without backward");
      else if (seen >= 0)
        error("stage {}, step {}: {} a second time, first at step {}", s, step, name(i), line[seen].step);
      else
        seen = static_cast<std::int64_t>(p);
    }
    for (Op op : kMicroBatchOps)
      for (std::int64_t m = 0; m < num_micro_batches() && expected(op, s) > 0; ++m)
        if (at[index(op)][m] < 0) error("stage {}: {} of micro-batch {} is missing", s, code(op), m);
    for (Op op : kFinalOps) {
      if (op == Op::reduce_tied_grads && num_stages() == 1)
        continue;  // may be left out: ties within a stage are aliases
      if (expected(op, s) > 0 && at[index(op)][0] < 0) error("stage {}: {} is missing", s, code(op));
    }
    if (report_.errors.size() > errors_before) return;  // what follows relies on completeness

    check_order(s, at);
    check_slots(s);
    report_.peak_live_micro_batches.push_back(peak_live(s));
  }

  void check_order(std::int64_t s, const Positions& at) {
    const auto& line = lines_[s];
    const auto require = [&](std::int64_t before, std::int64_t after) {
      if (before < 0 || after < 0 || before < after) return;
      error("stage {}, step {}: {} comes before {} (step {}), which it needs", s, line[after].step,
            name(line[after].instruction), name(line[before].instruction), line[before].step);
    };
    for (const auto& [before, after] : kOrders)
      for (std::int64_t m = 0; m < num_micro_batches(); ++m) require(at[index(before)][m], at[index(after)][m]);
    for (std::int64_t m = 0; m + 1 < num_micro_batches(); ++m)  // a data source is drawn from in its own order
      require(at[index(Op::load)][m], at[index(Op::load)][m + 1]);
    if (!training_) return;
    const auto& backwards = at[index(Op::backward)];
    const std::int64_t last_backward = *std::max_element(backwards.begin(), backwards.end());
    const std::int64_t tied = at[index(Op::reduce_tied_grads)][0];
    require(last_backward, tied);
    require(last_backward, at[index(Op::reduce_grads)][0]);
    require(tied, at[index(Op::reduce_grads)][0]);
    require(at[index(Op::reduce_grads)][0], at[index(Op::optimizer_step)][0]);
  }

  // A micro-batch owns one slot from its first to its last instruction on the stage.
  void check_slots(std::int64_t s) {
    const auto& line = lines_[s];
    std::vector<std::int64_t> last(num_micro_batches(), -1), slot(num_micro_batches(), -1);
    for (std::size_t p = 0; p < line.size(); ++p)
      if (has_micro_batch(line[p].instruction.op)) last[line[p].instruction.micro_batch] = static_cast<std::int64_t>(p);
    std::vector<std::int64_t> holder(std::min<std::int64_t>(schedule_.stages[s].num_buffers, max_slot(line) + 1), -1);
    for (std::size_t p = 0; p < line.size(); ++p) {
      const auto& [i, step] = line[p];
      if (!has_micro_batch(i.op)) continue;
      if (slot[i.micro_batch] >= 0 && slot[i.micro_batch] != i.buffer)
        error("stage {}, step {}: {} in slot {}, but the micro-batch lies in slot {}", s, step, name(i), i.buffer,
              slot[i.micro_batch]);
      slot[i.micro_batch] = i.buffer;
      const std::int64_t other = holder[i.buffer];
      if (other >= 0 && other != i.micro_batch && last[other] > static_cast<std::int64_t>(p))
        error(
            "stage {}, step {}: {} overwrites slot {}, which holds micro-batch {} until {} at step "
            "{}",
            s, step, name(i), i.buffer, other, name(line[last[other]].instruction), line[last[other]].step);
      holder[i.buffer] = i.micro_batch;
    }
  }

  static std::int64_t max_slot(const std::vector<Placed>& line) {
    std::int64_t slot = -1;
    for (const auto& [i, step] : line)
      if (has_micro_batch(i.op)) slot = std::max<std::int64_t>(slot, i.buffer);
    return slot;
  }

  // Forwarded, and what lets go of it (backward; without any, the send) not yet done.
  std::int64_t peak_live(std::int64_t s) const {
    const Op release = training_ ? Op::backward : Op::send_activation;
    const bool stays = expected(release, s) > 0;
    std::int64_t live = 0, peak = 0;
    for (const auto& [i, step] : lines_[s]) {
      if (i.op == Op::forward) peak = std::max(peak, ++live);
      if (i.op == (stays ? release : Op::forward)) --live;
    }
    return peak;
  }

  std::vector<Placed> only(std::int64_t s, Op op) const {
    std::vector<Placed> found;
    for (const Placed& placed : lines_[s])
      if (placed.instruction.op == op) found.push_back(placed);
    return found;
  }

  void check_link(std::int64_t from, Op send, std::int64_t to) {
    const auto sends = only(from, send), receives = only(to, link(send).other_end);
    for (std::size_t k = 0; k < std::min(sends.size(), receives.size()); ++k) {
      if (sends[k].instruction.micro_batch == receives[k].instruction.micro_batch) continue;
      error(
          "link from stage {} to stage {}, message {}: stage {} step {} sends micro-batch {} ({}), "
          "but stage {} step {} "
          "expects micro-batch {} ({})",
          from, to, k, from, sends[k].step, sends[k].instruction.micro_batch, code(send), to, receives[k].step,
          receives[k].instruction.micro_batch, code(receives[k].instruction.op));
      return;
    }
    if (sends.size() != receives.size())
      error("link from stage {} to stage {}: {} {} but {} {}", from, to, sends.size(), code(send), receives.size(),
            code(link(send).other_end));
  }

  // ---- the play ----

  static bool waits_for_all(Op op) { return op == Op::reduce_tied_grads || op == Op::optimizer_step; }
  bool finished(std::int64_t s) const { return next_[s] == lines_[s].size(); }
  const Placed& current(std::int64_t s) const { return lines_[s][next_[s]]; }
  bool stands_at(std::int64_t s, Op op) const { return !finished(s) && current(s).instruction.op == op; }

  void play() {
    next_.assign(num_stages(), 0);
    std::vector<std::int64_t> ready;  // stages that may be able to go on
    for (std::int64_t s = num_stages(); s-- > 0;) ready.push_back(s);
    std::array<std::int64_t, kNumOps> arrived{};
    std::vector<bool> counted(num_stages(), false);
    while (!ready.empty()) {
      const std::int64_t s = ready.back();
      ready.pop_back();
      while (!finished(s)) {
        const Op op = current(s).instruction.op;
        const auto [neighbour, other_end] = link(op);
        if (neighbour != 0) {
          if (!stands_at(s + neighbour, other_end)) break;
          ++next_[s + neighbour];
          ready.push_back(s + neighbour);
        } else if (waits_for_all(op)) {
          if (!counted[s]) ++arrived[index(op)];
          counted[s] = true;
          if (arrived[index(op)] < num_stages()) break;
          arrived[index(op)] = 0;
          counted.assign(num_stages(), false);
          for (std::int64_t other = 0; other < num_stages(); ++other) {
            if (other == s) continue;
            ++next_[other];
            ready.push_back(other);
          }
        }
        ++next_[s];
      }
    }
    for (std::int64_t s = 0; s < num_stages(); ++s)
      if (!finished(s)) return report_deadlock(s);
  }

  // The stage that `s`, which is stuck, waits for.
  std::int64_t waits_for(std::int64_t s) const {
    const Op op = current(s).instruction.op;
    if (const auto neighbour = link(op).neighbour; neighbour != 0) return s + neighbour;
    std::int64_t other = 0;
    while (stands_at(other, op)) ++other;
    return other;
  }

  void report_deadlock(std::int64_t s) {
    std::vector<std::int64_t> path;
    while (std::find(path.begin(), path.end(), s) == path.end()) {
      path.push_back(s);
      s = waits_for(s);
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), s));  // the way into the cycle
    std::string text = "deadlock:";
    for (std::int64_t stage : path)
      text += fmt::format("{} stage {} at step {} ({}) waits for",
                          stage == path.front() ? "" : fmt::format(" stage {}, but", stage), stage, current(stage).step,
                          name(current(stage).instruction));
    error("{} stage {}", text, path.front());
  }

  const Schedule& schedule_;
  ScheduleReport report_;
  bool training_ = false;
  std::vector<std::vector<Placed>> lines_;
  std::vector<std::size_t> next_;  // the play: each stage's position
};

}  // namespace

ScheduleReport check(const Schedule& schedule) { return Checker(schedule).run(); }

}  // namespace espalier
