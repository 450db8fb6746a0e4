// SPDX-License-Identifier: Apache-2.0
// A group of ours as c10d sees it. Each call of c10d becomes one or more of ours, and what has to be done when they
// are:
//
//   lists of tensors       copied into one tensor before, or out of it afterwards, where ours take one
//   ..._coalesced          one after the other, waited for together
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/c10d.hpp"
#include "espalier/comm/collectives.hpp"
#include "espalier/comm/world_state.hpp"

namespace espalier {

namespace {

using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkRef = c10::intrusive_ptr<c10d::Work>;
using BackendRef = c10::intrusive_ptr<c10d::Backend>;

constexpr const char* kName = "espalier";

class Completer;

// What one call of c10d started.
class GroupWork final : public c10d::Work {
 public:
  GroupWork(int rank, c10d::OpType type, std::optional<milliseconds> timeout, std::weak_ptr<Completer> completer)
      : c10d::Work(rank, type), timeout_(timeout), completer_(std::move(completer)) {}

  std::vector<espalier::Work> works;
  std::function<void()> finish;  // when all are done
  Tensors results;

  bool isCompleted() override {
    const std::unique_lock lock(guard_, std::try_to_lock);
    if (!lock.owns_lock()) return false;  // somebody waits for it
    if (ended_) return true;
    if (future_ != nullptr) return future_->completed();
    try {
      for (espalier::Work& work : works)
        if (!work.done()) return false;
      conclude();
    } catch (...) {
      fail();
    }
    return true;
  }

  bool isSuccess() const override {
    const std::lock_guard lock(guard_);
    return future_ != nullptr ? future_->completed() && !future_->hasError() : ended_ && error_ == nullptr;
  }

  std::exception_ptr exception() const override {
    const std::lock_guard lock(guard_);
    return future_ != nullptr && future_->hasError() ? future_->exception_ptr() : error_;
  }

  Tensors result() override { return results; }
  void synchronize() override { wait(); }

  bool wait(milliseconds timeout = kNoTimeout) override {
    std::unique_lock lock(guard_);
    if (future_ != nullptr) {
      const auto future = future_;
      lock.unlock();
      future->waitAndThrow();  // its works have deadlines
      return true;
    }
    if (!ended_) run(timeout == kNoTimeout ? timeout_ : timeout);
    if (error_ != nullptr) std::rethrow_exception(error_);
    return true;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // The rest of it, on a thread of the backend.
  void complete_future() {
    run(timeout_);
    tell_future();
  }

 private:
  // Waits for all that is left, and keeps the error.
  void run(std::optional<milliseconds> timeout) {
    try {
      for (espalier::Work& work : works) {
        if (timeout) {
          work.wait(*timeout);
        } else {
          work.wait();
        }
      }
      conclude();
    } catch (...) {
      fail();
    }
  }
  void conclude() {
    const at::NoGradGuard no_grad;
    if (finish) std::exchange(finish, nullptr)();
    ended_ = true;
  }
  void fail() {
    error_ = std::current_exception();
    ended_ = true;
  }
  void tell_future() {
    if (error_ != nullptr) {
      future_->setError(error_);
    } else {
      future_->markCompleted(c10::IValue(results));
    }
  }

  const std::optional<milliseconds> timeout_;
  const std::weak_ptr<Completer> completer_;
  mutable std::mutex guard_;  // of what follows; held by whoever waits, but for the thread that completes the future
  bool ended_ = false;
  std::exception_ptr error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // once asked for
};

using WorkPtr = c10::intrusive_ptr<GroupWork>;

// Completes works whose futures were asked for. All members start collectives in one order, so one thread waits for
// them in that order; a receive depends on its sender alone and has a thread for itself.
class Completer {
 public:
  void take(WorkPtr work) {
    const bool receives = work->retrieveOpType() == c10d::OpType::RECV;
    const std::lock_guard lock(mutex_);
    if (lanes_.empty()) lanes_.push_back(std::make_unique<Lane>());
    std::size_t chosen = 0;
    if (receives) {
      chosen = 1;
      while (chosen < lanes_.size() && !lanes_[chosen]->idle()) ++chosen;
      if (chosen == lanes_.size()) lanes_.push_back(std::make_unique<Lane>());
    }
    lanes_[chosen]->push(std::move(work));
  }

 private:
  class Lane {
   public:
    Lane() : thread_([queue = queue_] { complete_all(*queue); }) {}
    // Blocks until all have ended, at most until their deadlines.
    ~Lane() {
      {
        const std::lock_guard lock(queue_->mutex);
        queue_->closing = true;
        queue_->changed.notify_one();
      }
      if (thread_.get_id() == std::this_thread::get_id()) {  // what the future calls held the backend's last handle
        thread_.detach();
      } else {
        thread_.join();
      }
    }
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    void push(WorkPtr work) {
      const std::lock_guard lock(queue_->mutex);
      queue_->works.push_back(std::move(work));
      queue_->changed.notify_one();
    }
    bool idle() const {
      const std::lock_guard lock(queue_->mutex);
      return queue_->works.empty();
    }

   private:
    struct Queue {
      std::mutex mutex;
      std::condition_variable changed;
      std::deque<WorkPtr> works;  // the first is being waited for
      bool closing = false;
    };

    static void complete_all(Queue& queue) {
      std::unique_lock lock(queue.mutex);
      while (true) {
        queue.changed.wait(lock, [&] { return queue.closing || !queue.works.empty(); });
        if (queue.works.empty()) return;
        WorkPtr work = queue.works.front();
        lock.unlock();
        work->complete_future();
        work.reset();
        lock.lock();
        queue.works.pop_front();
      }
    }

    const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
    std::thread thread_;
  };

  std::mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // the first for collectives
};

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  const std::lock_guard lock(guard_);
  if (future_ != nullptr) return future_;
  const auto completer = completer_.lock();
  if (completer == nullptr && !ended_) run(timeout_);
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  if (ended_) {
    tell_future();
  } else {
    completer->take(WorkPtr::unsafe_reclaim_from_nonowning(this));
  }
  return future_;
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().reshape({-1}); }

std::vector<std::int64_t> sizes_of(const Tensors& tensors) {
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

std::int64_t total(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

at::Tensor joined(const Tensors& tensors) {
  Tensors parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(flat(tensor));
  return at::cat(parts);
}

// The elements of `all`, one tensor after the other.
void deal_out(const at::Tensor& all, const Tensors& tensors) {
  std::int64_t first = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.detach().copy_(all.narrow(0, first, tensor.numel()).view(tensor.sizes()));
    first += tensor.numel();
  }
}

class GroupBackend final : public c10d::Backend {
 public:
  explicit GroupBackend(Group group)
      : c10d::Backend(static_cast<int>(group.rank()), static_cast<int>(group.size())), group_(std::move(group)) {}

  const std::string getBackendName() const override { return kName; }

  void setTimeout(milliseconds timeout) override { timeout_ = timeout; }

  void abort() override {
    if (const auto& transport = group_.state().core->transport; transport != nullptr)
      transport->abort(fmt::format("rank {} has aborted its process group", group_.world_rank(group_.rank())));
  }

  WorkRef allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto work = begin(c10d::OpType::ALLREDUCE, options.timeout, tensors);
    work->works.push_back(all_reduce_(one("allreduce", tensors), group_, reduction("allreduce", options.reduceOp)));
    return work;
  }

  WorkRef allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    auto work = begin(c10d::OpType::ALLREDUCE_COALESCED, options.timeout, tensors);
    const ReduceOp op = reduction("allreduce_coalesced", options.reduceOp);
    for (at::Tensor& tensor : tensors) work->works.push_back(all_reduce_(tensor, group_, op));
    return work;
  }

  WorkRef broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto work = begin(c10d::OpType::BROADCAST, options.timeout, tensors);
    work->works.push_back(broadcast_(one("broadcast", tensors), group_, options.rootRank));
    return work;
  }

  WorkRef reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto work = begin(c10d::OpType::REDUCE, options.timeout, tensors);
    work->works.push_back(
        reduce_(one("reduce", tensors), group_, options.rootRank, reduction("reduce", options.reduceOp)));
    return work;
  }

  WorkRef allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    Tensors& parts = one("allgather", outputs);
    auto work = begin(c10d::OpType::ALLGATHER, options.timeout, parts);
    work->works.push_back(all_gather_v(parts, one("allgather", inputs), group_));
    return work;
  }

  WorkRef _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    auto work = begin(c10d::OpType::_ALLGATHER_BASE, options.timeout, {output});
    work->works.push_back(all_gather_into(output, input, group_));
    return work;
  }

  WorkRef allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    check_pairs("allgather_coalesced", outputs.size(), inputs.size());
    auto work = begin(c10d::OpType::ALLGATHER_COALESCED, options.timeout, {});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      work->works.push_back(all_gather_v(outputs[i], inputs[i], group_));
      work->results.insert(work->results.end(), outputs[i].begin(), outputs[i].end());
    }
    return work;
  }

  WorkRef allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    check_pairs("allgather_into_tensor_coalesced", outputs.size(), inputs.size());
    auto work = begin(c10d::OpType::COALESCED, options.timeout, outputs);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      work->works.push_back(all_gather_into(outputs[i], inputs[i], group_));
    return work;
  }

  WorkRef reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override {
    const Tensors& parts = one("reduce_scatter", inputs);
    at::Tensor& output = one("reduce_scatter", outputs);
    for (const at::Tensor& part : parts)
      ESPALIER_CHECK_CONFIG(part.numel() == output.numel(),
                            "{}: an input has {} elements; expected {}, as the output has", where("reduce_scatter"),
                            part.numel(), output.numel());
    auto work = begin(c10d::OpType::REDUCE_SCATTER, options.timeout, outputs);
    work->works.push_back(
        reduce_scatter_into(output, joined(parts), group_, reduction("reduce_scatter", options.reduceOp)));
    return work;
  }

  WorkRef _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    auto work = begin(c10d::OpType::_REDUCE_SCATTER_BASE, options.timeout, {output});
    work->works.push_back(
        reduce_scatter_into(output, input, group_, reduction("_reduce_scatter_base", options.reduceOp)));
    return work;
  }

  WorkRef reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    check_pairs("reduce_scatter_tensor_coalesced", outputs.size(), inputs.size());
    auto work = begin(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, options.timeout, outputs);
    const ReduceOp op = reduction("reduce_scatter_tensor_coalesced", options.reduceOp);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      work->works.push_back(reduce_scatter_into(outputs[i], inputs[i], group_, op));
    return work;
  }

  WorkRef gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    const at::Tensor& input = one("gather", inputs);
    Tensors parts;
    at::Tensor all;
    if (options.rootRank == rank_) {
      parts = one("gather", outputs);
      check_equal_parts("gather", parts, input);
      all = at::empty({size_ * input.numel()}, input.options());
    }
    auto work = begin(c10d::OpType::GATHER, options.timeout, parts);
    work->works.push_back(gather_into(all, input, group_, options.rootRank));
    work->finish = [all, parts] { deal_out(all, parts); };
    return work;
  }

  WorkRef scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override {
    at::Tensor& output = one("scatter", outputs);
    at::Tensor input;
    if (options.rootRank == rank_) {
      const Tensors& parts = one("scatter", inputs);
      check_equal_parts("scatter", parts, output);
      input = joined(parts);
    }
    auto work = begin(c10d::OpType::SCATTER, options.timeout, outputs);
    work->works.push_back(scatter_into(output, input, group_, options.rootRank));
    return work;
  }

  WorkRef alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    auto work = begin(c10d::OpType::ALLTOALL_BASE, options.timeout, {output});
    work->works.push_back(all_to_all_into(output, input, group_, output_splits, input_splits));
    return work;
  }

  WorkRef alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    check_members("alltoall", inputs.size());
    check_members("alltoall", outputs.size());
    auto work = begin(c10d::OpType::ALLTOALL, options.timeout, outputs);
    const at::Tensor input = joined(inputs);
    at::Tensor received = at::empty({total(sizes_of(outputs))}, input.options());
    work->works.push_back(all_to_all_into(received, input, group_, sizes_of(outputs), sizes_of(inputs)));
    work->finish = [received, outputs] { deal_out(received, outputs); };
    return work;
  }

  WorkRef send(Tensors& tensors, int to, int tag) override {
    auto work = begin(c10d::OpType::SEND, c10d::kUnsetTimeout, {});
    work->works.push_back(espalier::send(one("send", tensors), group_, to, tag));
    return work;
  }

  WorkRef recv(Tensors& tensors, int from, int tag) override {
    auto work = begin(c10d::OpType::RECV, c10d::kUnsetTimeout, tensors);
    work->works.push_back(espalier::recv(one("recv", tensors), group_, from, tag));
    return work;
  }

  WorkRef barrier(const c10d::BarrierOptions& options) override {
    auto work = begin(c10d::OpType::BARRIER, options.timeout, {});
    work->works.push_back(espalier::barrier(group_));
    return work;
  }

  WorkRef allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override { refuse("allreduce_sparse"); }
  WorkRef recvAnysource(Tensors&, int) override { refuse("recvAnysource"); }
  void monitoredBarrier(const c10d::BarrierOptions&, bool) override { refuse("monitoredBarrier"); }
  BackendRef split(const c10::intrusive_ptr<c10d::Store>&, const std::vector<int>&,
                   const c10::intrusive_ptr<Options>&) override {
    refuse("split");
  }
  BackendRef merge(const c10::intrusive_ptr<c10d::Store>&, const c10::intrusive_ptr<Options>&, const int&,
                   const int&) override {
    refuse("merge");
  }
  BackendRef shrink(const std::vector<std::int64_t>&, int, const c10::intrusive_ptr<Options>&) override {
    refuse("shrink");
  }

 private:
  std::string where(std::string_view operation) const {
    return fmt::format("{} on backend '{}' of group '{}'", operation, kName, group_.name());
  }

  [[noreturn]] void refuse(std::string_view operation) const {
    throw ConfigError(fmt::format(
        "{}: there is no such operation; there are allreduce, broadcast, reduce, allgather, gather, scatter, reduce_scatter, "
        "alltoall, send and recv (from a given rank), barrier, and their forms for one tensor and for several",
        where(operation)));
  }

  c10::intrusive_ptr<GroupWork> begin(c10d::OpType type, milliseconds timeout, Tensors results) const {
    auto work = c10::make_intrusive<GroupWork>(rank_, type, timeout > milliseconds(0) ? timeout : timeout_, completer_);
    work->results = std::move(results);
    return work;
  }

  // c10d passes lists for several devices of a process; there is one.
  template <class T>
  T& one(std::string_view operation, std::vector<T>& list) const {
    ESPALIER_CHECK_CONFIG(list.size() == 1, "{}: {} lists or tensors; expected 1, as a rank has one device",
                          where(operation), list.size());
    return list[0];
  }

  ReduceOp reduction(std::string_view operation, const c10d::ReduceOp& op) const {
    switch (op.op_) {
      case c10d::ReduceOp::SUM:
        return ReduceOp::sum;
      case c10d::ReduceOp::AVG:
        return ReduceOp::mean;
      case c10d::ReduceOp::PRODUCT:
        return ReduceOp::product;
      case c10d::ReduceOp::MIN:
        return ReduceOp::min;
      case c10d::ReduceOp::MAX:
        return ReduceOp::max;
      case c10d::ReduceOp::BAND:
        return ReduceOp::bit_and;
      case c10d::ReduceOp::BOR:
        return ReduceOp::bit_or;
      case c10d::ReduceOp::BXOR:
        return ReduceOp::bit_xor;
      case c10d::ReduceOp::PREMUL_SUM:
      case c10d::ReduceOp::UNUSED:
        break;
    }
    throw ConfigError(
        fmt::format("{}: there is no reduction number {}; expected SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR",
                    where(operation), static_cast<int>(op.op_)));
  }

  void check_members(std::string_view operation, std::size_t count) const {
    ESPALIER_CHECK_CONFIG(static_cast<int>(count) == size_, "{}: {} tensors; expected one for each of {} members",
                          where(operation), count, size_);
  }
  void check_equal_parts(std::string_view operation, const Tensors& parts, const at::Tensor& mine) const {
    check_members(operation, parts.size());
    for (const at::Tensor& part : parts)
      ESPALIER_CHECK_CONFIG(part.numel() == mine.numel() && part.scalar_type() == mine.scalar_type(),
                            "{}: one of the root's tensors is {} of {}; expected {} of {}, as every member has",
                            where(operation), part.numel(), part.dtype().name(), mine.numel(), mine.dtype().name());
  }
  void check_pairs(std::string_view operation, std::size_t num_outputs, std::size_t num_inputs) const {
    ESPALIER_CHECK_CONFIG(num_outputs == num_inputs, "{}: {} outputs and {} inputs; expected as many", where(operation),
                          num_outputs, num_inputs);
  }

  const Group group_;
  std::optional<milliseconds> timeout_;  // of waits; none: the group's
  const std::shared_ptr<Completer> completer_ = std::make_shared<Completer>();
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> as_c10d_backend(const Group& group) {
  ESPALIER_CHECK_CONFIG(group.valid(),
                        "as_c10d_backend: the group is empty (a default Group); make one with World::make_group or "
                        "a Mesh");
  return c10::make_intrusive<GroupBackend>(group);
}

}  // namespace espalier
