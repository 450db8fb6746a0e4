// SPDX-License-Identifier: Apache-2.0
// Reductions and gathers go between hosts as little as they can:
//
// as many members on each host     all_reduce       reduce_scatter inside, all_reduce of a slice between, all_gather
// inside
//   (k places)                       reduce_scatter   reduce_scatter inside, reduce_scatter between
//                                    all_gather       all_gather between, all_gather inside
//   one member on each host          as everything else
//   otherwise, with the first        all_reduce       all_reduce inside, all_reduce between the first, broadcast inside
//   member of each host              reduce_scatter   as all_reduce, of which each keeps its part
//                                    all_gather       all_gather inside, all_gather between the first, broadcast inside
//
// "Between" is among the members at one place, so that with k members on a host k slices travel at once. Everything
// else goes over Gloo among all members, and messages between members on one host inside it. What travels has the dtype
// it is summed in: float16 and bfloat16 go as float32.
#include "espalier/comm/backends/hierarchical/spanning_communicator.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/host/host_transport.hpp"

namespace espalier::detail::hierarchical {

namespace {

char* bytes(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

at::Tensor like(const at::Tensor& tensor, std::int64_t count) { return at::empty({count}, tensor.options()); }

at::Tensor flat(const at::Tensor& tensor) { return tensor.view({tensor.numel()}); }

// The dtype it is summed in.
at::Tensor reducible(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf ? tensor.to(at::kFloat) : tensor;
}

// Block b of `to` <- block order[b] of `from`.
void copy_blocks(const at::Tensor& to, const at::Tensor& from, std::span<const std::int64_t> order) {
  const std::size_t block_bytes = to.nbytes() / order.size();
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::memcpy(bytes(to) + i * block_bytes, bytes(from) + static_cast<std::size_t>(order[i]) * block_bytes,
                block_bytes);
  }
}

std::vector<std::int64_t> inverse(std::span<const std::int64_t> order) {
  std::vector<std::int64_t> result(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    result[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  return result;
}

// The ways of one group, on its thread. Tensors are contiguous and not empty.
class Ways {
 public:
  Ways(Steps& steps, const Placement& placement, const RankSet& members, const Links& links)
      : steps_(steps), placement_(placement), links_(links) {
    for (const std::int64_t peer : placement.between().to_vector()) {
      if (peer != placement.rank) peers_ += fmt::format("{}{}", peers_.empty() ? "" : ",", peer);
    }
    for (const auto& ranks : placement.places) {
      for (const std::int64_t rank : ranks) by_place_.push_back(*members.index_of(rank));
    }
    my_index_ = *members.index_of(placement.rank);
    for (const std::int64_t rank : members.to_vector()) {
      for (std::size_t host = 0; host < placement.hosts.size(); ++host) {
        const auto& there = placement.hosts[host];
        const auto found = std::ranges::find(there, rank);
        if (found != there.end())
          padded_by_host_.push_back(static_cast<std::int64_t>(host) * most() + (found - there.begin()));
      }
    }
  }

  void all_reduce(const at::Tensor& tensor, ReduceOp op) const {
    if (!placement_.even) return reduce_over_first(tensor, op);
    const std::int64_t count = tensor.numel(), size = inside_size(), slice_count = (count + size - 1) / size;
    at::Tensor whole = tensor;
    if (slice_count * size != count) {  // the slices are equal
      whole = at::zeros({slice_count * size}, tensor.options());
      std::memcpy(bytes(whole), bytes(tensor), tensor.nbytes());
    }
    const at::Tensor slice = like(tensor, slice_count);
    inside("reduce_scatter", links_.inside->reduce_scatter(slice, whole, op));
    between("all_reduce", links_.between->all_reduce(slice, op));
    inside("all_gather", links_.inside->all_gather(whole, slice));
    if (!whole.is_same(tensor)) std::memcpy(bytes(tensor), bytes(whole), tensor.nbytes());
  }

  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const {
    if (!placement_.even) {
      const at::Tensor sums = flat(input).clone();
      reduce_over_first(sums, op);
      const std::size_t part_bytes = output.nbytes();
      std::memcpy(bytes(output), bytes(sums) + static_cast<std::size_t>(my_index_) * part_bytes, part_bytes);
      return;
    }
    const at::Tensor by_place = like(input, input.numel());
    copy_blocks(by_place, input, by_place_);
    const at::Tensor mine = like(input, input.numel() / inside_size());
    inside("reduce_scatter", links_.inside->reduce_scatter(mine, by_place, op));
    between("reduce_scatter", links_.between->reduce_scatter(output, mine, op));
  }

  void all_gather(const at::Tensor& output, const at::Tensor& input) const {
    if (!placement_.even) return gather_over_first(output, input);
    const at::Tensor mine = like(input, input.numel() * placement_.num_hosts());
    between("all_gather", links_.between->all_gather(mine, input));
    const at::Tensor by_place = like(output, output.numel());
    inside("all_gather", links_.inside->all_gather(by_place, mine));
    copy_blocks(output, by_place, inverse(by_place_));
  }

 private:
  void reduce_over_first(const at::Tensor& tensor, ReduceOp op) const {
    if (links_.inside != nullptr) inside("all_reduce", links_.inside->all_reduce(tensor, op));
    if (links_.between != nullptr) between("all_reduce", links_.between->all_reduce(tensor, op));
    if (links_.inside != nullptr) inside("broadcast", links_.inside->broadcast(tensor, 0));
  }

  // Every host's block has room for as many members as the largest has.
  void gather_over_first(const at::Tensor& output, const at::Tensor& input) const {
    const std::int64_t count = input.numel();
    const at::Tensor block = at::zeros({most() * count}, input.options());
    const at::Tensor all = like(input, placement_.num_hosts() * most() * count);
    if (links_.inside != nullptr) {
      inside("all_gather", links_.inside->all_gather(block.narrow(0, 0, inside_size() * count), flat(input)));
    } else {
      std::memcpy(bytes(block), bytes(input), input.nbytes());
    }
    if (links_.between != nullptr) between("all_gather", links_.between->all_gather(all, block));
    if (links_.inside != nullptr) inside("broadcast", links_.inside->broadcast(all, 0));
    copy_blocks(output, all, padded_by_host_);
  }

  void inside(std::string_view what, std::shared_ptr<Operation> step) const { steps_.inside(what, std::move(step)); }
  void between(std::string_view what, std::shared_ptr<Operation> step) const {
    steps_.between(what, std::move(step), peers_);
  }
  std::int64_t inside_size() const { return std::ssize(placement_.hosts[static_cast<std::size_t>(placement_.host)]); }
  std::int64_t most() const { return std::ssize(placement_.places); }  // members on a host

  Steps& steps_;
  const Placement& placement_;
  const Links& links_;
  std::string peers_;                         // "2,4"
  std::int64_t my_index_ = 0;                 // group rank
  std::vector<std::int64_t> by_place_;        // group ranks, place by place
  std::vector<std::int64_t> padded_by_host_;  // by group rank: host * most() + place
};

// What a group's jobs need; they may outlive its communicator.
struct Shared {
  Shared(std::shared_ptr<Steps> the_steps, Placement the_placement, const RankSet& the_members, Links the_links)
      : steps(std::move(the_steps)),
        placement(std::move(the_placement)),
        links(std::move(the_links)),
        ways(*steps, placement, the_members, links) {}

  const std::shared_ptr<Steps> steps;
  const Placement placement;
  const Links links;
  const Ways ways;
};

class SpanningCommunicator final : public Communicator {
 public:
  SpanningCommunicator(std::shared_ptr<Steps> steps, Placement placement, const RankSet& members, std::string name,
                       Links links)
      : shared_(std::make_shared<Shared>(std::move(steps), std::move(placement), members, std::move(links))),
        members_(members),
        name_(std::move(name)) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  std::shared_ptr<Operation> all_reduce(at::Tensor tensor, ReduceOp op) override {
    const Call call{.kind = CallKind::all_reduce, .dtype = tensor.scalar_type(), .reduce = op, .count = tensor.numel()};
    if (is_flat()) return pass(call, [&](Communicator& whole) { return whole.all_reduce(tensor, op); });
    return run(call, [tensor, op](const Ways& ways) {
      const at::Tensor travels = reducible(tensor);
      ways.all_reduce(travels, op);
      if (!travels.is_same(tensor)) tensor.copy_(travels);
    });
  }

  std::shared_ptr<Operation> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    const Call call{
        .kind = CallKind::reduce_scatter, .dtype = output.scalar_type(), .reduce = op, .count = output.numel()};
    if (is_flat()) return pass(call, [&](Communicator& whole) { return whole.reduce_scatter(output, input, op); });
    return run(call, [output, input, op](const Ways& ways) {
      const at::Tensor from = reducible(input);
      const at::Tensor to = from.is_same(input) ? output : at::empty(output.sizes(), from.options());
      ways.reduce_scatter(to, from, op);
      if (!to.is_same(output)) output.copy_(to);
    });
  }

  std::shared_ptr<Operation> all_gather(at::Tensor output, at::Tensor input) override {
    const Call call{.kind = CallKind::all_gather, .dtype = input.scalar_type(), .count = input.numel()};
    if (std::exchange(announced_, false) || is_flat())
      return pass(call, [&](Communicator& whole) { return whole.all_gather(output, input); });
    return run(call, [output, input](const Ways& ways) { ways.all_gather(output, input); });
  }

  std::shared_ptr<Operation> broadcast(at::Tensor tensor, std::int64_t root) override {
    const Call call{.kind = CallKind::broadcast,
                    .dtype = tensor.scalar_type(),
                    .root = static_cast<std::int32_t>(root),
                    .count = tensor.numel()};
    return pass(call, [&](Communicator& whole) { return whole.broadcast(tensor, root); });
  }

  std::shared_ptr<Operation> reduce(at::Tensor output, at::Tensor input, ReduceOp op, std::int64_t root) override {
    const Call call{.kind = CallKind::reduce,
                    .dtype = input.scalar_type(),
                    .reduce = op,
                    .root = static_cast<std::int32_t>(root),
                    .count = input.numel()};
    return pass(call, [&](Communicator& whole) { return whole.reduce(output, input, op, root); });
  }

  std::shared_ptr<Operation> gather(at::Tensor output, at::Tensor input, std::int64_t root) override {
    const Call call{.kind = CallKind::gather,
                    .dtype = input.scalar_type(),
                    .root = static_cast<std::int32_t>(root),
                    .count = input.numel()};
    return pass(call, [&](Communicator& whole) { return whole.gather(output, input, root); });
  }

  std::shared_ptr<Operation> scatter(at::Tensor output, at::Tensor input, std::int64_t root) override {
    const Call call{.kind = CallKind::scatter,
                    .dtype = output.scalar_type(),
                    .root = static_cast<std::int32_t>(root),
                    .count = output.numel()};
    return pass(call, [&](Communicator& whole) { return whole.scatter(output, input, root); });
  }

  std::shared_ptr<Operation> all_gather_v(std::vector<at::Tensor>, at::Tensor) override {
    throw InternalError("hierarchical: all_gather_v is emulated, as the capabilities say");
  }

  std::shared_ptr<Operation> all_to_all(at::Tensor output, at::Tensor input, std::vector<std::int64_t> output_elems,
                                        std::vector<std::int64_t> input_elems) override {
    const Call call{.kind = CallKind::all_to_all, .dtype = input.scalar_type(), .count = Call::kAnyCount};
    return pass(call, [&](Communicator& whole) {
      return whole.all_to_all(output, input, std::move(output_elems), std::move(input_elems));
    });
  }

  std::shared_ptr<Operation> barrier() override {
    return pass({.kind = CallKind::barrier}, [](Communicator& whole) { return whole.barrier(); });
  }

  std::shared_ptr<Operation> send(at::Tensor tensor, std::int64_t to, std::int64_t tag) override {
    steps().bridge().check();
    if (const auto index = inside_index(to)) return shared_->links.inside->send(std::move(tensor), *index, tag);
    return shared_->links.whole->send(std::move(tensor), to, tag);
  }

  std::shared_ptr<Operation> recv(at::Tensor tensor, std::int64_t from, std::int64_t tag) override {
    steps().bridge().check();
    if (const auto index = inside_index(from)) return shared_->links.inside->recv(std::move(tensor), *index, tag);
    return shared_->links.whole->recv(std::move(tensor), from, tag);
  }

  // The next all_gather goes over Gloo, whose members say who did not come.
  void announce() override {
    shared_->links.whole->announce();
    announced_ = true;
  }

 private:
  Steps& steps() const { return *shared_->steps; }
  bool is_flat() const { return shared_->placement.places.size() == 1; }

  // A member on this host, by its number there.
  std::optional<std::int64_t> inside_index(std::int64_t group_rank) const {
    const auto& mine = shared_->placement.hosts[static_cast<std::size_t>(shared_->placement.host)];
    const auto found = std::ranges::find(mine, members_.member(group_rank));
    return found == mine.end() ? std::nullopt : std::optional(found - mine.begin());
  }

  // Before every collective, under the mutex. Members on one host that call something else find it out at once.
  void compare(const Call& call) {
    steps().bridge().check();
    if (shared_->links.calls != nullptr) compare_calls(*shared_->links.calls, call);
  }

  std::shared_ptr<Operation> run(const Call& call, std::function<void(const Ways&)> way) {
    const std::lock_guard lock(mutex_);
    compare(call);
    std::string name =
        fmt::format("{} #{} of group '{}' {}", to_string(call), sequence_++, name_, members_.to_string());
    return steps().post(std::move(name), [shared = shared_, way = std::move(way), is_empty = call.count == 0] {
      if (!is_empty) way(shared->ways);
    });
  }

  template <typename Post>
  std::shared_ptr<Operation> pass(const Call& call, const Post& post) {
    const std::lock_guard lock(mutex_);
    compare(call);
    return post(*shared_->links.whole);
  }

  const std::shared_ptr<Shared> shared_;
  const RankSet members_;
  const std::string name_;
  const Capabilities capabilities_ = capabilities_of("hierarchical");
  std::mutex mutex_;
  std::int64_t sequence_ = 0;
  bool announced_ = false;
};

}  // namespace

std::shared_ptr<Communicator> make_spanning_communicator(std::shared_ptr<Steps> steps, Placement placement,
                                                         const RankSet& members, std::string name, Links links) {
  return std::make_shared<SpanningCommunicator>(std::move(steps), std::move(placement), members, std::move(name),
                                                std::move(links));
}

}  // namespace espalier::detail::hierarchical
