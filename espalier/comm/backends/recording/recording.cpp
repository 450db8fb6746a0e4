// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/recording/recording.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"
#include "espalier/comm/threads.hpp"

namespace espalier::detail {
namespace {

// An operation whose result is multiplied once it is there.
class ScaledOperation final : public Operation {
 public:
  ScaledOperation(std::shared_ptr<Operation> inner, std::vector<at::Tensor> written, double scale)
      : inner_(std::move(inner)), written_(std::move(written)), scale_(scale) {}

  bool done() override {
    if (!inner_->done()) return false;
    finish();
    return true;
  }
  void wait(Clock::time_point deadline) override {
    inner_->wait(deadline);
    finish();
  }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }
  void park(std::shared_ptr<Operation>) override { inner_->park(inner_); }

 private:
  void finish() {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : std::exchange(written_, {})) {
      if (tensor.defined()) tensor.mul_(scale_);  // only the root's may be
    }
  }

  std::shared_ptr<Operation> inner_;
  std::vector<at::Tensor> written_;
  const double scale_;
};

class FinishedOperation final : public Operation {
 public:
  bool done() override { return true; }
  void wait(Clock::time_point) override {}
  std::chrono::milliseconds timeout() const override { return std::chrono::milliseconds(1); }
  void park(std::shared_ptr<Operation>) override {}
};

class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Recorder> recorder, std::string name,
                        std::int64_t size)
      : inner_(std::move(inner)),
        recorder_(std::move(recorder)),
        name_(std::move(name)),
        size_(size),
        capabilities_(inner_->capabilities()) {
    capabilities_.point_to_point = capabilities_.point_to_point && recorder_->point_to_point;
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  std::shared_ptr<Operation> all_reduce(at::Tensor tensor, ReduceOp op) override {
    return noted("all_reduce", tensor, -1, {tensor}, [&] { return inner_->all_reduce(tensor, op); });
  }
  std::shared_ptr<Operation> reduce(at::Tensor output, at::Tensor input, ReduceOp op, std::int64_t root) override {
    return noted("reduce", input, root, {output}, [&] { return inner_->reduce(output, input, op, root); });
  }
  std::shared_ptr<Operation> broadcast(at::Tensor tensor, std::int64_t root) override {
    return noted("broadcast", tensor, root, {tensor}, [&] { return inner_->broadcast(tensor, root); });
  }
  std::shared_ptr<Operation> all_gather(at::Tensor output, at::Tensor input) override {
    return noted("all_gather", input, -1, {output}, [&] { return inner_->all_gather(output, input); });
  }
  std::shared_ptr<Operation> all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input) override {
    return noted("all_gather_v", input, -1, outputs, [&] { return inner_->all_gather_v(outputs, input); });
  }
  std::shared_ptr<Operation> gather(at::Tensor output, at::Tensor input, std::int64_t root) override {
    return noted("gather", input, root, {output}, [&] { return inner_->gather(output, input, root); });
  }
  std::shared_ptr<Operation> scatter(at::Tensor output, at::Tensor input, std::int64_t root) override {
    return noted("scatter", output, root, {output}, [&] { return inner_->scatter(output, input, root); });
  }
  std::shared_ptr<Operation> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return noted("reduce_scatter", input, -1, {output}, [&] { return inner_->reduce_scatter(output, input, op); });
  }
  std::shared_ptr<Operation> all_to_all(at::Tensor output, at::Tensor input, std::vector<std::int64_t> output_elems,
                                        std::vector<std::int64_t> input_elems) override {
    return noted("all_to_all", input, -1, {output},
                 [&] { return inner_->all_to_all(output, input, std::move(output_elems), std::move(input_elems)); });
  }
  std::shared_ptr<Operation> send(at::Tensor tensor, std::int64_t to, std::int64_t tag) override {
    return noted("send", tensor, to, {}, [&] { return inner_->send(tensor, to, tag); });
  }
  std::shared_ptr<Operation> recv(at::Tensor tensor, std::int64_t from, std::int64_t tag) override {
    return noted("recv", tensor, from, {tensor}, [&] { return inner_->recv(tensor, from, tag); });
  }
  std::shared_ptr<Operation> barrier() override {
    return noted("barrier", at::Tensor(), -1, {}, [&] { return inner_->barrier(); });
  }
  void announce() override { inner_->announce(); }

 private:
  // Notes the call, asks what is to be done to it, and does that.
  template <class Call>
  std::shared_ptr<Operation> noted(std::string_view operation, const at::Tensor& tensor, std::int64_t peer,
                                   std::vector<at::Tensor> written, Call call) {
    RecordedCall record{.operation = std::string(operation), .group = name_, .group_size = size_, .peer = peer};
    if (tensor.defined()) {
      record.dtype = tensor.scalar_type();
      record.elems = tensor.numel();
      record.bytes = static_cast<std::int64_t>(tensor.nbytes());
    }
    const Fault fault = recorder_->note(std::move(record));
    if (fault.drop) return std::make_shared<FinishedOperation>();
    std::shared_ptr<Operation> inner = call();
    if (fault.scale == 1.0) return inner;
    return std::make_shared<ScaledOperation>(std::move(inner), std::move(written), fault.scale);
  }

  const std::shared_ptr<Communicator> inner_;
  const std::shared_ptr<Recorder> recorder_;
  const std::string name_;
  const std::int64_t size_;
  Capabilities capabilities_;
};

class RecordingTransport final : public Transport {
 public:
  RecordingTransport(std::shared_ptr<Transport> inner, std::shared_ptr<Recorder> recorder)
      : inner_(std::move(inner)), recorder_(std::move(recorder)) {}

  std::shared_ptr<Communicator> connect(const RankSet& members, std::string_view name, std::uint64_t context) override {
    return std::make_shared<RecordingCommunicator>(inner_->connect(members, name, context), recorder_,
                                                   std::string(name), members.size());
  }
  at::Tensor buffer(at::IntArrayRef sizes, at::ScalarType dtype) override { return inner_->buffer(sizes, dtype); }
  void abort(std::string_view reason) override { inner_->abort(reason); }
  void close() override { inner_->close(); }
  double wait_seconds() const override { return inner_->wait_seconds(); }
  std::int64_t bytes_sent() const override { return inner_->bytes_sent(); }

 private:
  const std::shared_ptr<Transport> inner_;
  const std::shared_ptr<Recorder> recorder_;
};

}  // namespace

std::vector<RecordedCall> Recorder::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

std::int64_t Recorder::count(std::string_view operation) const {
  const std::lock_guard lock(mutex_);
  return std::count_if(calls_.begin(), calls_.end(),
                       [&](const RecordedCall& call) { return call.operation == operation; });
}

std::int64_t Recorder::bytes() const {
  const std::lock_guard lock(mutex_);
  std::int64_t bytes = 0;
  for (const RecordedCall& call : calls_) bytes += call.bytes;
  return bytes;
}

void Recorder::clear() {
  const std::lock_guard lock(mutex_);
  calls_.clear();
}

Fault Recorder::note(RecordedCall call) {
  const std::lock_guard lock(mutex_);
  call.index = next_index_++;
  calls_.push_back(std::move(call));
  return plan_ ? plan_(calls_.back()) : Fault{};
}

std::shared_ptr<Transport> make_recording_transport(std::shared_ptr<Transport> inner,
                                                    std::shared_ptr<Recorder> recorder) {
  if (inner == nullptr) return nullptr;  // a world of one
  return std::make_shared<RecordingTransport>(std::move(inner), std::move(recorder));
}

void run_ranks_recorded(const std::vector<std::shared_ptr<Recorder>>& recorders,
                        const std::function<void(World&)>& body, const WorldOptions& options) {
  const auto size = static_cast<std::int64_t>(recorders.size());
  std::vector<std::shared_ptr<Transport>> transports(1);
  if (size > 1) transports = make_host_transports_for_threads(size, host_options_of(options));
  for (std::size_t rank = 0; rank < transports.size(); ++rank) {
    transports[rank] = make_recording_transport(std::move(transports[rank]), recorders[rank]);
  }
  run_threads(std::move(transports), Backend::host, body, options);
}

}  // namespace espalier::detail
