// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/host/host_transport.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/host/endpoint.hpp"
#include "espalier/comm/backends/host/tasks.hpp"

namespace espalier::detail {
namespace host {
namespace {

// What a Work holds. The task belongs to the endpoint until it is done, so a dropped Work needs no care.
class HostOperation final : public Operation {
 public:
  HostOperation(std::shared_ptr<Endpoint> endpoint, std::shared_ptr<Task> task)
      : endpoint_(std::move(endpoint)), task_(std::move(task)) {}

  bool done() override { return endpoint_->poll(*task_); }
  void wait(Clock::time_point deadline) override { endpoint_->wait(*task_, deadline); }
  std::chrono::milliseconds timeout() const override { return endpoint_->timeout(); }
  void park(std::shared_ptr<Operation>) override {}
  std::string describe_wait() const { return endpoint_->describe_wait(*task_); }

 private:
  std::shared_ptr<Endpoint> endpoint_;
  std::shared_ptr<Task> task_;
};

char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }
const char* const_bytes_of(const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); }

void copy_bytes(char* to, const char* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(std::shared_ptr<Endpoint> endpoint, Space& space) : endpoint_(std::move(endpoint)), space_(space) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  std::shared_ptr<Operation> all_reduce(at::Tensor tensor, ReduceOp op) override {
    Call call = call_of(CallKind::all_reduce, tensor);
    call.reduce = op;
    if (tensor.nbytes() * static_cast<std::size_t>(space_.size() - 1) <=
        std::min(kDirectReduceBytes, space_.largest_block)) {
      return post(std::make_shared<DirectReduceTask>(space_, call, std::move(tensor)));
    }
    const auto place = lent_from(const_bytes_of(tensor), tensor.nbytes());
    return post(std::make_shared<ReduceTask>(space_, call, tensor, tensor, place));
  }

  std::shared_ptr<Operation> reduce(at::Tensor output, at::Tensor input, ReduceOp op, std::int64_t root) override {
    Call call = call_of(CallKind::reduce, input, root);
    call.reduce = op;
    if (root == space_.me) return post(std::make_shared<RootReduceTask>(space_, call, std::move(output)));
    return exchange(call, {to_root(input, root)}, nothing(), {input});
  }

  std::shared_ptr<Operation> broadcast(at::Tensor tensor, std::int64_t root) override {
    const Call call = call_of(CallKind::broadcast, tensor, root);
    auto incoming = nothing();
    std::vector<ExchangeTask::Outgoing> outgoing;
    if (root == space_.me) {
      outgoing.push_back(stream(const_bytes_of(tensor), tensor.nbytes(), space_.others));
    } else {
      incoming[static_cast<std::size_t>(root)] = {.data = bytes_of(tensor), .bytes = tensor.nbytes(), .expected = true};
    }
    return exchange(call, std::move(outgoing), std::move(incoming), {std::move(tensor)});
  }

  std::shared_ptr<Operation> all_gather(at::Tensor output, at::Tensor input) override {
    return to_all(call_of(CallKind::all_gather, input), parts_of(output), {output, input});
  }

  std::shared_ptr<Operation> all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input) override {
    auto incoming = nothing();
    for (std::size_t member = 0; member < incoming.size(); ++member) {
      incoming[member] = {.data = bytes_of(outputs[member]), .bytes = outputs[member].nbytes(), .expected = true};
    }
    Call call = call_of(CallKind::all_gather_v, input);
    call.count = Call::kAnyCount;
    outputs.push_back(std::move(input));
    return to_all(call, std::move(incoming), std::move(outputs));
  }

  std::shared_ptr<Operation> gather(at::Tensor output, at::Tensor input, std::int64_t root) override {
    const Call call = call_of(CallKind::gather, input, root);
    if (root != space_.me) return exchange(call, {to_root(input, root)}, nothing(), {input});
    auto incoming = parts_of(output);
    auto& mine = incoming[static_cast<std::size_t>(root)];
    mine.expected = false;
    copy_bytes(mine.data, const_bytes_of(input), mine.bytes);
    return exchange(call, {}, std::move(incoming), {std::move(output)});
  }

  std::shared_ptr<Operation> scatter(at::Tensor output, at::Tensor input, std::int64_t root) override {
    const Call call = call_of(CallKind::scatter, output, root);
    auto incoming = nothing();
    if (root != space_.me) {
      incoming[static_cast<std::size_t>(root)] = {.data = bytes_of(output), .bytes = output.nbytes(), .expected = true};
      return exchange(call, {}, std::move(incoming), {std::move(output)});
    }
    const std::size_t bytes = output.nbytes();
    std::vector<ExchangeTask::Outgoing> outgoing;
    for (const std::int32_t other : space_.others) {
      const auto member = static_cast<std::size_t>(space_.index_of[static_cast<std::size_t>(other)]);
      outgoing.push_back(stream(const_bytes_of(input) + member * bytes, bytes, {other}));
    }
    copy_bytes(bytes_of(output), const_bytes_of(input) + static_cast<std::size_t>(root) * bytes, bytes);
    return exchange(call, std::move(outgoing), std::move(incoming), {std::move(input), std::move(output)});
  }

  std::shared_ptr<Operation> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    Call call = call_of(CallKind::reduce_scatter, output);
    call.reduce = op;
    const auto place = lent_from(const_bytes_of(input), input.nbytes());
    return post(std::make_shared<ReduceTask>(space_, call, std::move(output), std::move(input), place));
  }

  std::shared_ptr<Operation> all_to_all(at::Tensor output, at::Tensor input, std::vector<std::int64_t> output_elems,
                                        std::vector<std::int64_t> input_elems) override {
    Call call = call_of(CallKind::all_to_all, input);
    call.count = Call::kAnyCount;
    const std::size_t element_bytes = input.element_size();
    auto incoming = nothing();
    std::vector<ExchangeTask::Outgoing> outgoing(incoming.size());
    const char* from = const_bytes_of(input);
    char* to = bytes_of(output);
    for (std::size_t member = 0; member < incoming.size(); ++member) {
      const auto send_bytes = static_cast<std::size_t>(input_elems[member]) * element_bytes;
      const auto recv_bytes = static_cast<std::size_t>(output_elems[member]) * element_bytes;
      outgoing[member] = stream(from, send_bytes, {space_.members[member]});
      incoming[member] = {.data = to, .bytes = recv_bytes, .expected = true};
      from += send_bytes;
      to += recv_bytes;
    }
    const auto me = static_cast<std::size_t>(space_.me);
    incoming[me].expected = false;
    copy_bytes(incoming[me].data, outgoing[me].data, incoming[me].bytes);
    std::rotate(outgoing.begin(), outgoing.begin() + space_.me, outgoing.end());  // not everyone to member 0 first
    outgoing.erase(outgoing.begin());
    return exchange(call, std::move(outgoing), std::move(incoming), {std::move(output), std::move(input)});
  }

  std::shared_ptr<Operation> send(at::Tensor tensor, std::int64_t to, std::int64_t tag) override {
    const Call call = call_of(CallKind::send, tensor);
    return post(std::make_shared<SendTask>(space_, call, std::move(tensor), static_cast<std::int32_t>(to), tag));
  }

  std::shared_ptr<Operation> recv(at::Tensor tensor, std::int64_t from, std::int64_t tag) override {
    const Call call = call_of(CallKind::recv, tensor);
    return post(std::make_shared<RecvTask>(space_, call, std::move(tensor), static_cast<std::int32_t>(from), tag));
  }

  std::shared_ptr<Operation> barrier() override { return compare({.kind = CallKind::barrier}); }

  // All members tell all others that they call this.
  std::shared_ptr<Operation> compare(const Call& call) {
    auto incoming = nothing();
    for (auto& in : incoming) in.expected = true;
    incoming[static_cast<std::size_t>(space_.me)].expected = false;
    return exchange(call, {{.data = nullptr, .bytes = 0, .to = space_.others}}, std::move(incoming), {});
  }

 private:
  static Call call_of(CallKind kind, const at::Tensor& tensor, std::int64_t root = 0) {
    return {
        .kind = kind, .dtype = tensor.scalar_type(), .root = static_cast<std::int32_t>(root), .count = tensor.numel()};
  }

  std::vector<ExchangeTask::Incoming> nothing() const {
    return std::vector<ExchangeTask::Incoming>(static_cast<std::size_t>(space_.size()));
  }

  // Where these bytes lie in this rank's buffers, if they do and are worth lending.
  std::optional<std::uint64_t> lent_from(const char* data, std::size_t bytes) const {
    return bytes < kLeastLentBytes ? std::nullopt : endpoint_->place_of(data, bytes);
  }

  ExchangeTask::Outgoing stream(const char* data, std::size_t bytes, std::vector<std::int32_t> to) const {
    return {.data = data, .bytes = bytes, .place = lent_from(data, bytes), .to = std::move(to)};
  }

  // As many bytes of the tensor from each member.
  std::vector<ExchangeTask::Incoming> parts_of(const at::Tensor& tensor) const {
    auto incoming = nothing();
    const std::size_t bytes = tensor.nbytes() / incoming.size();
    for (std::size_t member = 0; member < incoming.size(); ++member) {
      incoming[member] = {.data = bytes_of(tensor) + member * bytes, .bytes = bytes, .expected = true};
    }
    return incoming;
  }

  ExchangeTask::Outgoing to_root(const at::Tensor& tensor, std::int64_t root) const {
    return stream(const_bytes_of(tensor), tensor.nbytes(), {space_.members[static_cast<std::size_t>(root)]});
  }

  // All members send their input, the last tensor, to all.
  std::shared_ptr<Operation> to_all(const Call& call, std::vector<ExchangeTask::Incoming> incoming,
                                    std::vector<at::Tensor> tensors) {
    const at::Tensor& input = tensors.back();
    auto& mine = incoming[static_cast<std::size_t>(space_.me)];
    mine.expected = false;
    copy_bytes(mine.data, const_bytes_of(input), input.nbytes());
    auto all = stream(const_bytes_of(input), input.nbytes(), space_.others);
    return exchange(call, {std::move(all)}, std::move(incoming), std::move(tensors));
  }

  std::shared_ptr<Operation> exchange(const Call& call, std::vector<ExchangeTask::Outgoing> outgoing,
                                      std::vector<ExchangeTask::Incoming> incoming, std::vector<at::Tensor> tensors) {
    return post(
        std::make_shared<ExchangeTask>(space_, call, std::move(outgoing), std::move(incoming), std::move(tensors)));
  }

  std::shared_ptr<Operation> post(std::shared_ptr<Task> task) {
    endpoint_->post(task);
    return std::make_shared<HostOperation>(endpoint_, std::move(task));
  }

  const std::shared_ptr<Endpoint> endpoint_;
  Space& space_;
  const Capabilities capabilities_ = capabilities_of("host");
};

class HostTransport final : public Transport {
 public:
  explicit HostTransport(std::shared_ptr<Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}

  std::shared_ptr<Communicator> connect(const RankSet& members, std::string_view name, std::uint64_t context) override {
    return std::make_shared<HostCommunicator>(endpoint_, endpoint_->space(members.to_vector(), name, context));
  }
  at::Tensor buffer(at::IntArrayRef sizes, at::ScalarType dtype) override { return endpoint_->buffer(sizes, dtype); }
  void note(std::string_view during) override { endpoint_->note(during); }
  void abort(std::string_view reason) override { endpoint_->abort(reason); }
  std::string failure() override { return endpoint_->failure(); }
  void close() override { endpoint_->close(); }
  double wait_seconds() const override { return endpoint_->wait_seconds(); }
  std::int64_t bytes_sent() const override { return endpoint_->bytes_sent(); }
  std::int64_t num_unexpected_messages() const { return endpoint_->num_unexpected_messages(); }

 private:
  const std::shared_ptr<Endpoint> endpoint_;
};

std::shared_ptr<Transport> make_transport(std::shared_ptr<Segment> segment, std::int64_t rank, bool is_thread,
                                          const HostOptions& options) {
  return std::make_shared<HostTransport>(
      std::make_shared<Endpoint>(std::move(segment), rank, is_thread,
                                 EndpointOptions{.timeout = options.timeout,
                                                 .copies_limit_bytes = options.copies_limit_bytes,
                                                 .log = options.log,
                                                 .postmortem = options.postmortem,
                                                 .names = {.world_ranks = options.world_ranks, .host = options.host}}));
}

}  // namespace
}  // namespace host

HostOptions host_options_of(const WorldOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 44;
  HostOptions host{.timeout = options.timeout, .log = options.log, .postmortem = options.postmortem};
  host.buffer_bytes = options.host_buffer_bytes.value_or(host.buffer_bytes);
  ESPALIER_CHECK_CONFIG(host.buffer_bytes >= 0 && host.buffer_bytes <= kMost,
                        "host backend: host_buffer_bytes is {}; expected 0 to {}", host.buffer_bytes, kMost);
  return host;
}

std::shared_ptr<Transport> make_host_transport(Store& store, std::int64_t rank, std::int64_t size,
                                               const HostOptions& options) {
  auto segment =
      host::Segment::for_processes(store, rank, size, options.arena_bytes, options.buffer_bytes,
                                   {.world_ranks = options.world_ranks, .host = options.host}, options.timeout);
  return host::make_transport(std::move(segment), rank, false, options);
}

std::vector<std::shared_ptr<Transport>> make_host_transports_for_threads(std::int64_t size,
                                                                         const HostOptions& options) {
  const auto segment = host::Segment::for_threads(size, options.arena_bytes, options.buffer_bytes);
  std::vector<std::shared_ptr<Transport>> transports;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    transports.push_back(host::make_transport(segment, rank, true, options));
  }
  return transports;
}

std::int64_t num_unexpected_messages(const Transport& transport) {
  return dynamic_cast<const host::HostTransport&>(transport).num_unexpected_messages();
}

void compare_calls(Communicator& communicator, const Call& call) {
  (void)dynamic_cast<host::HostCommunicator&>(communicator).compare(call);
}

std::string describe_wait(const Operation& operation) {
  return dynamic_cast<const host::HostOperation&>(operation).describe_wait();
}

}  // namespace espalier::detail
