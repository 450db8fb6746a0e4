// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/checked_calls.hpp"

#include <ATen/ops/empty.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/call.hpp"

namespace espalier::detail {
namespace {

static_assert(std::is_trivially_copyable_v<Call>);  // it travels as its bytes

class CheckedCommunicator final : public Communicator {
 public:
  CheckedCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<Transport> transport, const RankSet& members,
                      std::string_view name)
      : inner_(std::move(inner)), transport_(std::move(transport)), members_(members), name_(name) {}

  const Capabilities& capabilities() const override { return inner_->capabilities(); }

  std::shared_ptr<Operation> all_reduce(at::Tensor tensor, ReduceOp op) override {
    compare(CallKind::all_reduce, tensor, {.reduce = op});
    return inner_->all_reduce(std::move(tensor), op);
  }
  std::shared_ptr<Operation> reduce(at::Tensor output, at::Tensor input, ReduceOp op, std::int64_t root) override {
    compare(CallKind::reduce, input, {.reduce = op, .root = static_cast<std::int32_t>(root)});
    return inner_->reduce(std::move(output), std::move(input), op, root);
  }
  std::shared_ptr<Operation> broadcast(at::Tensor tensor, std::int64_t root) override {
    compare(CallKind::broadcast, tensor, {.root = static_cast<std::int32_t>(root)});
    return inner_->broadcast(std::move(tensor), root);
  }
  std::shared_ptr<Operation> all_gather(at::Tensor output, at::Tensor input) override {
    compare(CallKind::all_gather, input, {});
    return inner_->all_gather(std::move(output), std::move(input));
  }
  std::shared_ptr<Operation> all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input) override {
    compare(CallKind::all_gather_v, input, {.count = Call::kAnyCount});
    return inner_->all_gather_v(std::move(outputs), std::move(input));
  }
  std::shared_ptr<Operation> gather(at::Tensor output, at::Tensor input, std::int64_t root) override {
    compare(CallKind::gather, input, {.root = static_cast<std::int32_t>(root)});
    return inner_->gather(std::move(output), std::move(input), root);
  }
  std::shared_ptr<Operation> scatter(at::Tensor output, at::Tensor input, std::int64_t root) override {
    compare(CallKind::scatter, output, {.root = static_cast<std::int32_t>(root)});
    return inner_->scatter(std::move(output), std::move(input), root);
  }
  std::shared_ptr<Operation> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    compare(CallKind::reduce_scatter, output, {.reduce = op});
    return inner_->reduce_scatter(std::move(output), std::move(input), op);
  }
  std::shared_ptr<Operation> all_to_all(at::Tensor output, at::Tensor input, std::vector<std::int64_t> output_elems,
                                        std::vector<std::int64_t> input_elems) override {
    compare(CallKind::all_to_all, input, {.count = Call::kAnyCount});
    return inner_->all_to_all(std::move(output), std::move(input), std::move(output_elems), std::move(input_elems));
  }
  std::shared_ptr<Operation> send(at::Tensor tensor, std::int64_t to, std::int64_t tag) override {
    return inner_->send(std::move(tensor), to, tag);
  }
  std::shared_ptr<Operation> recv(at::Tensor tensor, std::int64_t from, std::int64_t tag) override {
    return inner_->recv(std::move(tensor), from, tag);
  }
  std::shared_ptr<Operation> barrier() override {
    compare(CallKind::barrier, at::Tensor(), {});
    return inner_->barrier();
  }
  void announce() override { inner_->announce(); }

 private:
  // Blocks until all members have told what they call; `mine` is without kind, dtype and, unless it may differ, count.
  void compare(CallKind kind, const at::Tensor& tensor, Call mine) {
    mine.kind = kind;
    if (tensor.defined()) {
      mine.dtype = tensor.scalar_type();
      if (mine.count != Call::kAnyCount) mine.count = tensor.numel();
    }
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Call));
    const at::Tensor told = at::empty({kBytes}, at::kByte);
    const at::Tensor all = at::empty({members_.size(), kBytes}, at::kByte);
    std::memset(told.mutable_data_ptr(), 0, sizeof(Call));
    std::memcpy(told.mutable_data_ptr(), &mine, sizeof(Call));
    const std::shared_ptr<Operation> exchange = inner_->all_gather(all, told);
    exchange->wait(Clock::now() + exchange->timeout());

    const std::int64_t number = next_number_++;
    const Call first = call_of(all, 0);
    for (std::int64_t member = 1; member < members_.size(); ++member)
      if (const Call theirs = call_of(all, member); theirs != first) fail_different(number, first, theirs, member);
  }

  static Call call_of(const at::Tensor& all, std::int64_t member) {
    Call call;
    std::memcpy(&call,
                static_cast<const char*>(all.const_data_ptr()) + member * static_cast<std::int64_t>(sizeof(Call)),
                sizeof(Call));
    return call;
  }

  [[noreturn]] void fail_different(std::int64_t number, const Call& first, const Call& theirs, std::int64_t member) {
    const std::string text = fmt::format(
        "group '{}' {}: the ranks call different operations: operation #{} is {} on rank {} but {} on rank {}; all members must call "
        "the same operations in the same order",
        name_, members_.to_string(), number, to_string(first), members_.member(0), to_string(theirs),
        members_.member(member));
    transport_->abort(text);
    throw CommError(text);
  }

  const std::shared_ptr<Communicator> inner_;
  const std::shared_ptr<Transport> transport_;
  const RankSet members_;
  const std::string name_;
  std::int64_t next_number_ = 0;
};

}  // namespace

std::shared_ptr<Communicator> check_calls(std::shared_ptr<Communicator> inner, std::shared_ptr<Transport> transport,
                                          const RankSet& members, std::string_view name) {
  return std::make_shared<CheckedCommunicator>(std::move(inner), std::move(transport), members, name);
}

}  // namespace espalier::detail
