// SPDX-License-Identifier: Apache-2.0
// Private: what a backend implements. The public free functions (collectives.hpp) validate, treat groups of one
// locally, make tensors contiguous, emulate what a backend lacks, and only then call one of these.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/comm/collectives.hpp"
#include "espalier/comm/group.hpp"

namespace espalier::detail {

using Clock = std::chrono::steady_clock;

// One posted operation of one rank. Holds its tensors.
class Operation {
 public:
  virtual ~Operation() = default;
  // Advances; whether the results are there. Never blocks. CommError if it failed.
  virtual bool done() = 0;
  // Blocks until done. CommError at the deadline, naming operation, group, sequence number and who was waited for.
  virtual void wait(Clock::time_point deadline) = 0;
  // The group's deadline for waits without one.
  virtual std::chrono::milliseconds timeout() const = 0;
  // Called when its Work is dropped before it was done: the transport keeps it and advances it later. Never blocks.
  virtual void park(std::shared_ptr<Operation> self) = 0;
};

// One group's communication space on one rank. Posting never waits for a peer. Tensors are contiguous, on the CPU and
// of a dtype the capabilities allow; the group has at least two members; ranks are group ranks.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual const Capabilities& capabilities() const = 0;
  virtual std::shared_ptr<Operation> all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  virtual std::shared_ptr<Operation> broadcast(at::Tensor tensor, std::int64_t root) = 0;
  // What the root alone uses, the output of reduce and gather and the input of scatter, is undefined on the others. The
  // root's output of reduce is its input.
  virtual std::shared_ptr<Operation> reduce(at::Tensor output, at::Tensor input, ReduceOp op, std::int64_t root) = 0;
  virtual std::shared_ptr<Operation> gather(at::Tensor output, at::Tensor input, std::int64_t root) = 0;
  virtual std::shared_ptr<Operation> scatter(at::Tensor output, at::Tensor input, std::int64_t root) = 0;
  virtual std::shared_ptr<Operation> all_gather(at::Tensor output, at::Tensor input) = 0;
  virtual std::shared_ptr<Operation> all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input) = 0;
  virtual std::shared_ptr<Operation> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) = 0;
  virtual std::shared_ptr<Operation> all_to_all(at::Tensor output, at::Tensor input,
                                                std::vector<std::int64_t> output_elems,
                                                std::vector<std::int64_t> input_elems) = 0;
  virtual std::shared_ptr<Operation> send(at::Tensor tensor, std::int64_t to, std::int64_t tag) = 0;
  virtual std::shared_ptr<Operation> recv(at::Tensor tensor, std::int64_t from, std::int64_t tag) = 0;
  virtual std::shared_ptr<Operation> barrier() = 0;
  // All members call this right before an operation to which one of them may never come, so that its time-out can name
  // who did not. Nothing to do for a backend that knows it anyway.
  virtual void announce() {}
};

// One rank's connection to all ranks of a world. Owned by the world; thread-safe where the world is used by several
// threads of a rank.
class Transport {
 public:
  virtual ~Transport() = default;
  // A communication space for these world ranks (this rank among them). `context` tells spaces over the same ranks
  // apart and is the same on all members. Collective over the members where the backend must connect.
  virtual std::shared_ptr<Communicator> connect(const RankSet& members, std::string_view name,
                                                std::uint64_t context) = 0;
  // Memory for World::host_buffer; undefined where ordinary memory is as good.
  virtual at::Tensor buffer(at::IntArrayRef, at::ScalarType) { return {}; }
  // What this rank is at ("forward of micro-batch 2 on stage 1"), to be shown with the calls that follow where a
  // backend keeps them for others.
  virtual void note(std::string_view) {}
  // Tells all peers that this rank gives up: their waits end with a CommError that carries `reason`. Never blocks.
  virtual void abort(std::string_view reason) = 0;
  // What has ended this world on this rank, as far as a look tells that does not wait; empty: nothing, or it cannot
  // tell.
  virtual std::string failure() { return ""; }
  // Leaves the world, as the last handle's end does: what others wait for is handed over first, at most until the
  // deadline; then their waits for this rank fail, and so do later calls here.
  virtual void close() = 0;
  virtual double wait_seconds() const = 0;
  virtual std::int64_t bytes_sent() const = 0;
};

}  // namespace espalier::detail
