// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "espalier/base/log.hpp"
#include "espalier/comm/group.hpp"

namespace espalier {

namespace detail {
struct WorldState;
}

struct C10dGroup;  // c10d.hpp

enum class Backend { host, gloo, hierarchical, mpi, c10d };

// "host", "gloo", "hierarchical", "mpi"; ConfigError with the legal names otherwise. (c10d cannot be asked for: see
// World::from_c10d.)
Backend backend_by_name(std::string_view name);
std::string_view to_string(Backend backend);

struct WorldOptions {
  // Default: ESPALIER_BACKEND; else host when all ranks share a host; else mpi when mpirun started them and this build
  // has it; else hierarchical (host inside each host, gloo between them) when some share a host; else gloo.
  std::optional<Backend> backend;
  std::chrono::milliseconds timeout{300'000};  // deadline of every wait
  LogSink log = stderr_sink();
  // Written by one rank when the world fails: what every rank was doing (host). Empty: ESPALIER_POSTMORTEM, else no
  // file. Hierarchical: a file on each host, whose name ends in the host's.
  std::string postmortem{};
  // The most bytes that World::host_buffer hands out to a rank at a time, on all ranks as rank 0 says. Unset:
  // ESPALIER_HOST_BUFFER_BYTES, else 16 GiB. It costs addresses, not memory.
  std::optional<std::int64_t> host_buffer_bytes{};
  // Before each collective its members compare what they call, where the backend does not notice by itself that it
  // differs (gloo, mpi, c10d): a CommError that shows both calls instead of a hang or wrong numbers. Costs a small
  // all-gather each, and posting waits for all members, which must then post the operations of different groups in one
  // order too. To find a fault with; also ESPALIER_CHECK_CALLS=1. Point-to-point operations are not compared.
  bool check_calls = false;
};

// This process's (or thread's) place among all ranks, and the source of every group. A cheap handle. A program may
// have several; nothing is global. After a CommError the world is poisoned: every later call rethrows it. It closes
// with the last handle to it (world, group or work), which waits until what was posted here for others has left this
// rank, at most for the deadline; what then is lost, and to whom, is logged (host).
class World {
 public:
  // From the launcher's variables: espalier run, torchrun, Open MPI, MPICH/PMI, Slurm; a world of one when there is no
  // launcher. Blocks until all ranks are there (CommError names the missing ones at the deadline). ConfigError when
  // the variables contradict each other, or the backend is mpi and this build or this launcher is without MPI.
  static World from_environment(const WorldOptions& options = {});

  // The ranks of a process group that the program has made with LibTorch's c10d: see c10d.hpp.
  static World from_c10d(const C10dGroup& group, const WorldOptions& options = {});

  std::int64_t rank() const;
  std::int64_t size() const;
  std::int64_t local_rank() const;  // among the ranks of this host
  std::int64_t local_size() const;
  const std::string& host() const;
  std::span<const std::int64_t> host_of_rank() const;  // by world rank, hosts numbered; empty: all ranks share one
  Backend backend() const;
  std::string_view launcher() const;  // "espalier run", "torchrun", "threads", "alone", ...
  const Group& group() const;         // all ranks, named "world"
  const Log& log() const;

  // The group of these ranks. Members only; all of them must call in the same order for groups they share. Equal sets
  // share one communicator. Blocks only where the backend must connect (gloo, mpi).
  Group make_group(const RankSet& members, std::string_view name) const;

  // A tensor, not initialised, whose memory the other ranks of the host reach (host; elsewhere an ordinary CPU tensor):
  // where it, or a contiguous part of it, is an argument of a collective, copies are saved, whatever the others pass,
  // and the operation is not done before the members that use it are. It may outlive the world. Memory is taken as it
  // is used, and the same memory again by later buffers once the last tensor of one is gone; all is given back at the
  // world's end. Not collective; never blocks. ConfigError above the limit.
  at::Tensor host_buffer(at::IntArrayRef sizes, at::ScalarType dtype) const;

  // Seconds this rank has spent blocked in waits so far, and bytes handed to the transport.
  double wait_seconds() const;
  std::int64_t bytes_sent() const;

  explicit World(std::shared_ptr<detail::WorldState> state);
  detail::WorldState& state() const { return *state_; }

 private:
  std::shared_ptr<detail::WorldState> state_;
};

}  // namespace espalier
