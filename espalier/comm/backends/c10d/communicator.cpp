// SPDX-License-Identifier: Apache-2.0
// How a c10d::Backend is bent to what a Communicator promises:
//
//   sends      are copied and kept by the session until they have arrived, so posting one is all
//              there is to it
//   receives   can only be waited for, not asked: done() starts a thread that waits
//   deadlines  are ours
//   dtypes     what is not reduced travels as bytes; float16 is reduced in float32, bool in uint8
//   failure    see session
#include "espalier/comm/backends/c10d/communicator.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "espalier/base/check.hpp"

#include "espalier/comm/names.hpp"

namespace espalier::detail {

namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kMaxTag = std::numeric_limits<int>::max() - 1;  // the next one breaks links, see gloo

std::string headline(const std::string& text) { return text.substr(0, text.find('\n')); }

// The name of an operation for messages, made only when needed: "all_reduce(sum, float32 x 4) #3 of
// group 'data' [0,2]".
using Naming = std::function<std::string()>;

class TimedWait {
 public:
  explicit TimedWait(C10dSession& session) : session_(session) {}
  ~TimedWait() { session_.waited_ns += std::chrono::nanoseconds(Clock::now() - start_).count(); }

 private:
  C10dSession& session_;
  const Clock::time_point start_ = Clock::now();
};

milliseconds time_left(Clock::time_point deadline) {
  return std::max(std::chrono::ceil<milliseconds>(deadline - Clock::now()), milliseconds(1));
}

class CollectiveOperation final : public Operation {
 public:
  // `late` says who did not come.
  CollectiveOperation(std::shared_ptr<C10dSession> session, C10dWork work, Naming name, Naming late,
                      std::function<void()> finish)
      : session_(std::move(session)),
        work_(std::move(work)),
        name_(std::move(name)),
        late_(std::move(late)),
        finish_(std::move(finish)) {}

  bool done() override {
    if (work_ == nullptr) return true;
    if (!work_->isCompleted()) {
      session_->check();
      return false;
    }
    complete(milliseconds(1));
    return true;
  }

  void wait(Clock::time_point deadline) override {
    if (work_ == nullptr) return;
    const TimedWait timed(*session_);
    complete(time_left(deadline));
  }

  milliseconds timeout() const override { return session_->timeout(); }
  void park(std::shared_ptr<Operation>) override {
    if (work_ != nullptr) session_->keep(work_, finish_);
  }

 private:
  void complete(milliseconds limit) {
    try {
      work_->wait(limit);
    } catch (const std::exception& error) {
      if (!work_->isCompleted())
        throw CommError(session_->fail(fmt::format("{} timed out after {} ms; {}", name_(), limit.count(), late_())));
      throw CommError(session_->explain(name_(), headline(error.what())));
    }
    work_ = nullptr;
    if (finish_) {
      const at::NoGradGuard no_grad;
      finish_();
    }
    session_->finish_kept();
  }

  std::shared_ptr<C10dSession> session_;
  C10dWork work_;  // null once done
  Naming name_;
  Naming late_;
  std::function<void()> finish_;
};

class ReceiveOperation final : public Operation {
 public:
  ReceiveOperation(std::shared_ptr<C10dSession> session, C10dWork work, std::int64_t from, Naming name)
      : session_(std::move(session)), work_(std::move(work)), from_(from), name_(std::move(name)) {}

  bool done() override {
    if (work_ == nullptr) return true;
    if (helper_ == nullptr) start_helper();
    std::unique_lock lock(helper_->mutex);
    if (!helper_->ended) {
      lock.unlock();
      session_->check();
      return false;
    }
    conclude(helper_->trouble);
    return true;
  }

  void wait(Clock::time_point deadline) override {
    if (work_ == nullptr) return;
    const TimedWait timed(*session_);
    const milliseconds limit = time_left(deadline);
    std::string trouble;
    if (helper_ != nullptr) {
      std::unique_lock lock(helper_->mutex);
      if (!helper_->changed.wait_for(lock, limit, [&] { return helper_->ended; })) time_out(limit);
      trouble = helper_->trouble;
    } else {
      trouble = wait_here(limit);
      if (!trouble.empty() && Clock::now() >= deadline) time_out(limit);
    }
    conclude(trouble);
  }

  milliseconds timeout() const override { return session_->timeout(); }
  void park(std::shared_ptr<Operation>) override {
    if (work_ != nullptr) session_->keep(work_);
  }

 private:
  struct Helper {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
    std::string trouble;
  };

  static std::string wait_for(c10d::Work& work, milliseconds limit) {
    try {
      return work.wait(limit) ? "" : "aborted";
    } catch (const std::exception& error) {
      return headline(error.what());
    }
  }
  std::string wait_here(milliseconds limit) { return wait_for(*work_, limit); }

  void start_helper() {
    helper_ = std::make_shared<Helper>();
    std::thread([helper = helper_, work = work_] {
      std::string trouble = wait_for(*work, kC10dForever);
      const std::lock_guard lock(helper->mutex);
      helper->ended = true;
      helper->trouble = std::move(trouble);
      helper->changed.notify_all();
    }).detach();
  }

  [[noreturn]] void time_out(milliseconds limit) {
    throw CommError(
        session_->fail(fmt::format("{} timed out after {} ms; waiting for rank {}", name_(), limit.count(), from_)));
  }
  void conclude(const std::string& trouble) {
    if (!trouble.empty()) throw CommError(session_->explain(name_(), trouble));
    work_ = nullptr;
  }

  std::shared_ptr<C10dSession> session_;
  C10dWork work_;  // null once done
  const std::int64_t from_;
  Naming name_;
  std::shared_ptr<Helper> helper_;
};

// What has been done when it was posted.
class DoneOperation final : public Operation {
 public:
  bool done() override { return true; }
  void wait(Clock::time_point) override {}
  milliseconds timeout() const override { return milliseconds(0); }
  void park(std::shared_ptr<Operation>) override {}
};

at::Tensor as_bytes(const at::Tensor& tensor) { return tensor.view({tensor.numel()}).view(at::kByte); }

// As a list for one device: equal parts of the tensor's bytes; without a tensor, nothing.
std::vector<std::vector<at::Tensor>> parts_of(const at::Tensor& tensor, std::int64_t count) {
  if (!tensor.defined()) return {};
  return {as_bytes(tensor).chunk(count)};
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return c10d::ReduceOp::SUM;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::bit_and:
      return c10d::ReduceOp::BAND;
    case ReduceOp::bit_or:
      return c10d::ReduceOp::BOR;
    case ReduceOp::bit_xor:
      return c10d::ReduceOp::BXOR;
  }
  return c10d::ReduceOp::SUM;
}

// On bytes of 0 or 1.
ReduceOp on_truth_values(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bit_or:
      return ReduceOp::max;
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::bit_and:
      return ReduceOp::min;
    case ReduceOp::bit_xor:
      return ReduceOp::bit_xor;
    case ReduceOp::mean:
      return op;  // refused before it gets here
  }
  return op;
}

// Memory in the dtype that a backend reduces this one in: the same memory where it can.
at::Tensor reducible(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return tensor.to(at::kFloat);
    case at::kBool:
      return as_bytes(tensor);
    default:
      return tensor;
  }
}

class C10dCommunicator final : public Communicator {
 public:
  C10dCommunicator(std::shared_ptr<C10dSession> session, std::shared_ptr<C10dStore> store,
                   std::shared_ptr<C10dLink> link, const RankSet& members, std::string name)
      : session_(std::move(session)),
        store_(std::move(store)),
        link_(link),
        backend_name_(link->backend->getBackendName()),
        members_(members),
        name_(std::move(name)) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  std::shared_ptr<Operation> all_reduce(at::Tensor tensor, ReduceOp op) override {
    const at::Tensor travels = reducible(tensor);
    std::vector<at::Tensor> list{travels};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(tensor.scalar_type() == at::kBool ? on_truth_values(op) : op);
    return post(
        described("all_reduce", op, tensor), tensor.nbytes(), [&] { return group()->allreduce(list, options); },
        [tensor, travels, op, size = members_.size()]() mutable {
          if (op == ReduceOp::mean) travels.div_(size);
          if (!travels.is_alias_of(tensor)) tensor.copy_(travels);
        });
  }

  // Every member's tensor may be written on the way.
  std::shared_ptr<Operation> reduce(at::Tensor output, at::Tensor input, ReduceOp op, std::int64_t root) override {
    if (input.numel() == 0) return nothing_to_do();
    at::Tensor travels = reducible(input);
    if (!output.defined() && travels.is_alias_of(input)) travels = travels.clone();
    std::vector<at::Tensor> list{travels};
    c10d::ReduceOptions options;
    options.reduceOp = to_c10d(input.scalar_type() == at::kBool ? on_truth_values(op) : op);
    options.rootRank = root;
    return post(
        described("reduce", op, input, fmt::format(", root {})", root)), input.nbytes(),
        [&] { return group()->reduce(list, options); },
        [output, travels, op, size = members_.size()]() mutable {
          if (!output.defined()) return;
          if (op == ReduceOp::mean) travels.div_(size);
          if (!travels.is_alias_of(output)) output.copy_(travels);
        });
  }

  std::shared_ptr<Operation> gather(at::Tensor output, at::Tensor input, std::int64_t root) override {
    if (input.numel() == 0) return nothing_to_do();
    auto to = parts_of(output, members_.size());
    std::vector<at::Tensor> from{as_bytes(input)};
    c10d::GatherOptions options;
    options.rootRank = root;
    return post(
        described("gather", input, fmt::format(", root {})", root)), input.nbytes(),
        [&] { return group()->gather(to, from, options); }, [output, input] {});
  }

  std::shared_ptr<Operation> scatter(at::Tensor output, at::Tensor input, std::int64_t root) override {
    if (output.numel() == 0) return nothing_to_do();
    std::vector<at::Tensor> to{as_bytes(output)};
    auto from = parts_of(input, members_.size());
    c10d::ScatterOptions options;
    options.rootRank = root;
    return post(
        described("scatter", output, fmt::format(", root {})", root)), input.defined() ? input.nbytes() : 0,
        [&] { return group()->scatter(to, from, options); }, [output, input] {});
  }

  std::shared_ptr<Operation> broadcast(at::Tensor tensor, std::int64_t root) override {
    std::vector<at::Tensor> list{as_bytes(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    if (tensor.numel() == 0) return nothing_to_do();
    return post(
        described("broadcast", tensor, fmt::format(", root {}", root)), tensor.nbytes(),
        [&] { return group()->broadcast(list, options); }, [tensor] {});
  }

  std::shared_ptr<Operation> all_gather(at::Tensor output, at::Tensor input) override {
    if (input.numel() == 0) return nothing_to_do();
    at::Tensor to = as_bytes(output), from = as_bytes(input);
    return post(
        described("all_gather", input), input.nbytes(), [&] { return group()->_allgather_base(to, from); },
        [output, input] {});
  }

  std::shared_ptr<Operation> all_gather_v(std::vector<at::Tensor>, at::Tensor) override {
    throw InternalError("c10d: all_gather_v is emulated, as the capabilities say");
  }

  std::shared_ptr<Operation> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    if (input.numel() == 0) return nothing_to_do();
    at::Tensor from = reducible(input).view({input.numel()});
    at::Tensor to = from.scalar_type() == output.scalar_type() ? output.view({output.numel()})
                                                               : at::empty({output.numel()}, from.options());
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(input.scalar_type() == at::kBool ? on_truth_values(op) : op);
    return post(
        described("reduce_scatter", op, output), input.nbytes(),
        [&] { return group()->_reduce_scatter_base(to, from, options); },
        [output, to, from, op, size = members_.size()]() mutable {
          if (op == ReduceOp::mean) to.div_(size);
          if (to.is_alias_of(output)) return;
          if (output.scalar_type() == at::kBool) {
            as_bytes(output).copy_(to);
          } else {
            output.view({output.numel()}).copy_(to);
          }
        });
  }

  std::shared_ptr<Operation> all_to_all(at::Tensor output, at::Tensor input, std::vector<std::int64_t> output_elems,
                                        std::vector<std::int64_t> input_elems) override {
    at::Tensor to = as_bytes(output), from = as_bytes(input);
    for (std::int64_t& count : output_elems) count *= output.element_size();
    for (std::int64_t& count : input_elems) count *= input.element_size();
    return post(
        described("all_to_all", input), input.nbytes(),
        [&] { return group()->alltoall_base(to, from, output_elems, input_elems); }, [output, input] {});
  }

  std::shared_ptr<Operation> send(at::Tensor tensor, std::int64_t to, std::int64_t tag) override {
    check_tag("send", tag);
    const auto name = described("send", tensor, fmt::format(") to rank {}, tag {}", to, tag));
    const std::lock_guard lock(mutex_);
    session_->check();
    std::vector<at::Tensor> copy{as_bytes(tensor.clone())};
    C10dWork work =
        start(name(next_sequence()), [&] { return group()->send(copy, static_cast<int>(to), static_cast<int>(tag)); });
    session_->bytes_sent += static_cast<std::int64_t>(tensor.nbytes());
    session_->keep_sent(std::move(work), members_.member(to), name(sequence_ - 1));
    return nothing_to_do();
  }

  std::shared_ptr<Operation> recv(at::Tensor tensor, std::int64_t from, std::int64_t tag) override {
    check_tag("recv", tag);
    const auto name = described("recv", tensor, fmt::format(") from rank {}, tag {}", from, tag));
    const std::lock_guard lock(mutex_);
    session_->check();
    std::vector<at::Tensor> list{as_bytes(tensor)};
    const std::int64_t sequence = next_sequence();
    C10dWork work =
        start(name(sequence), [&] { return group()->recv(list, static_cast<int>(from), static_cast<int>(tag)); });
    return std::make_shared<ReceiveOperation>(session_, std::move(work), members_.member(from),
                                              [name, sequence] { return name(sequence); });
  }

  // A byte that is reduced: c10d's own barrier would also wait for what was posted before.
  std::shared_ptr<Operation> barrier() override {
    std::vector<at::Tensor> list{at::zeros({1}, at::kByte)};
    return post([suffix = suffix()](std::int64_t sequence) { return fmt::format("barrier() #{}{}", sequence, suffix); },
                0, [&] { return group()->allreduce(list); }, nullptr);
  }

  void announce() override {
    const std::lock_guard lock(mutex_);
    session_->check();
    store_->set(place_key(*members_.index_of(session_->rank())), std::to_string(sequence_));
    announced_ = sequence_;
  }

 private:
  using Described = std::function<std::string(std::int64_t sequence)>;

  // The session owns the connections, and drops them when the world is closed.
  c10::intrusive_ptr<c10d::Backend> group() const {
    const std::shared_ptr<C10dLink> link = link_.lock();
    if (link == nullptr) throw CommError(fmt::format("group '{}': its world has been closed", name_));
    return link->backend;
  }
  std::int64_t next_sequence() { return sequence_++; }
  std::string suffix() const { return fmt::format(" of group '{}' {}", name_, members_.to_string()); }

  Described described(const char* what, const at::Tensor& tensor, std::string rest = ")") const {
    if (rest.find(')') == std::string::npos) rest += ")";
    return [what, dtype = dtype_name(tensor.scalar_type()), count = tensor.numel(), rest, suffix = suffix()](
               auto sequence) { return fmt::format("{}({} x {}{} #{}{}", what, dtype, count, rest, sequence, suffix); };
  }
  Described described(const char* what, ReduceOp op, const at::Tensor& tensor, std::string rest = ")") const {
    return [what, op, dtype = dtype_name(tensor.scalar_type()), count = tensor.numel(), rest,
            suffix = suffix()](auto sequence) {
      return fmt::format("{}({}, {} x {}{} #{}{}", what, detail::to_string(op), dtype, count, rest, sequence, suffix);
    };
  }

  // Where a member's latest announcement stands.
  static std::string place_key(std::int64_t member) { return fmt::format("at/{}", member); }

  // Who has not announced the operation.
  static std::string late(C10dStore& store, const RankSet& members, std::int64_t sequence) {
    std::vector<std::int64_t> missing;
    try {
      for (std::int64_t index = 0; index < members.size(); ++index) {
        const std::string key = place_key(index);
        if (!store.has(key) || std::stol(store.get(key, milliseconds(1000))) < sequence)
          missing.push_back(members.member(index));
      }
    } catch (const CommError&) {
      return "the store that knows who is late has gone";
    }
    if (missing.empty()) return "all members came, but not all finished";
    return fmt::format("waiting for rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
  }

  void check_tag(std::string_view where, std::int64_t tag) const {
    ESPALIER_CHECK_CONFIG(tag >= 0 && tag <= kMaxTag, "{}: tag {}; over {} tags go from 0 to {}", where, tag,
                          backend_name_, kMaxTag);
  }

  static std::shared_ptr<Operation> nothing_to_do() { return std::make_shared<DoneOperation>(); }

  // A backend refuses some things at once, connections that broke among them.
  template <typename Start>
  C10dWork start(const std::string& name, const Start& body) {
    try {
      return body();
    } catch (const std::exception& error) {
      throw CommError(session_->explain(name, headline(error.what())));
    }
  }

  template <typename Start>
  std::shared_ptr<Operation> post(Described name, std::size_t bytes, const Start& body, std::function<void()> finish) {
    const std::lock_guard lock(mutex_);  // all members must start in the same order
    session_->check();
    session_->finish_kept();
    const std::int64_t sequence = next_sequence();
    C10dWork work = start(name(sequence), body);
    session_->bytes_sent += static_cast<std::int64_t>(bytes);
    Naming late_text = [backend = backend_name_] { return backend + " does not know which member is late"; };
    if (announced_ == sequence) {
      late_text = [store = store_, members = members_, sequence] { return late(*store, members, sequence); };
    }
    return std::make_shared<CollectiveOperation>(
        session_, std::move(work), [name = std::move(name), sequence] { return name(sequence); }, std::move(late_text),
        std::move(finish));
  }

  const std::shared_ptr<C10dSession> session_;
  const std::shared_ptr<C10dStore> store_;  // of this group
  const std::weak_ptr<C10dLink> link_;
  const std::string backend_name_;
  const RankSet members_;
  const std::string name_;
  const Capabilities capabilities_ = capabilities_of("gloo");
  std::mutex mutex_;
  std::int64_t sequence_ = 0;
  std::int64_t announced_ = -1;  // the latest such operation
};

class C10dTransport final : public Transport {
 public:
  C10dTransport(std::shared_ptr<C10dStore> store, std::int64_t rank, std::int64_t size, milliseconds timeout,
                std::shared_ptr<C10dConnector> connector)
      : session_(std::make_shared<C10dSession>(std::move(store), rank, size, timeout)),
        connector_(std::move(connector)) {}

  std::shared_ptr<Communicator> connect(const RankSet& members, std::string_view name, std::uint64_t context) override {
    session_->check();
    const auto store = session_->store()->below(fmt::format("group/{:x}", context));
    const auto me = members.index_of(session_->rank());
    ESPALIER_CHECK(me.has_value(), "rank {} connects a group of {}", session_->rank(), members.to_string());
    store->set(fmt::format("here/{}", *me), "1");
    std::shared_ptr<C10dLink> link;
    try {
      link =
          connector_->connect(c10::make_intrusive<c10d::PrefixStore>("pairs", store->c10d_store()), members, *me, name);
    } catch (const ConfigError&) {
      throw;  // there is no way to connect these
    } catch (const std::exception& error) {
      throw CommError(session_->fail(not_connected(*store, members, name, error.what())));
    }
    session_->add(link);
    return std::make_shared<C10dCommunicator>(session_, store, std::move(link), members, std::string(name));
  }

  void abort(std::string_view reason) override { session_->fail(std::string(reason)); }
  std::string failure() override { return session_->failure(); }
  void close() override { session_->close(); }
  double wait_seconds() const override { return static_cast<double>(session_->waited_ns.load()) * 1e-9; }
  std::int64_t bytes_sent() const override { return session_->bytes_sent.load(); }

 private:
  std::string not_connected(C10dStore& store, const RankSet& members, std::string_view name, const std::string& cause) {
    std::vector<std::int64_t> missing;
    try {
      for (std::int64_t index = 0; index < members.size(); ++index)
        if (!store.has(fmt::format("here/{}", index))) missing.push_back(members.member(index));
    } catch (const CommError&) {  // the cause has to do
    }
    const std::string who = missing.empty() ? "" : fmt::format("rank {} did not come: ", fmt::join(missing, ", "));
    return fmt::format("group '{}' {}: not connected within {} ms over {}: {}{}", name, members.to_string(),
                       session_->timeout().count(), connector_->over(), who, headline(cause));
  }

  const std::shared_ptr<C10dSession> session_;
  const std::shared_ptr<C10dConnector> connector_;
};

}  // namespace

std::shared_ptr<Transport> make_c10d_transport(std::shared_ptr<C10dStore> store, std::int64_t rank, std::int64_t size,
                                               milliseconds timeout, std::shared_ptr<C10dConnector> connector) {
  return std::make_shared<C10dTransport>(std::move(store), rank, size, timeout, std::move(connector));
}

}  // namespace espalier::detail
