// SPDX-License-Identifier: Apache-2.0
// LibTorch's c10d, both ways: a program's process group as a world, and a group of ours as a backend of c10d.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>

#include "espalier/comm/group.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/plan/layout/rank_set.hpp"

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d

namespace espalier {

// Makes a backend of c10d for some ranks of a process group, this one among them; they alone call it, in the same order
// where they share ranks. They may meet at `store`, which nobody else uses. `name` is for messages. May block; what it
// throws becomes a CommError.
using MakeC10dBackend = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store,
                                                                        const RankSet& members, std::string_view name)>;

// What World::from_c10d makes a world of.
struct C10dGroup {
  // With a store, and a backend for CPU tensors, as init_process_group("cpu:gloo,cuda:nccl") makes it.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;

  // For groups of some of the ranks, and duplicates. Not needed over Gloo, whose groups are made like the program's,
  // over the same devices. Other backends need it, since a c10d group cannot be split by the members of the part alone.
  MakeC10dBackend make_backend = nullptr;
};

// World::from_c10d (world.hpp) blocks until all ranks of the process group have called it, at most for the time-out:
// CommError names the missing ones. Reductions and everything else of all ranks then run over the program's own group,
// whose ranks are the world's, and which the program may go on using as long as all ranks use both in the same order.
// Its own time-outs stay in force beside the world's. Closing the world leaves it open; a world that fails breaks it
// (Gloo) or aborts it, which ends what is pending on it. ConfigError: the process group is null, has no store or no
// backend for CPU tensors, or WorldOptions::backend asks for another than c10d.

// A world of `size` ranks of which each calls this, and which meet at a store of c10d that nobody else uses below the
// prefix "espalier": over host when they share one, else gloo, or what `options` asks for (not mpi). Blocks until all
// are there; CommError names the missing ones.
World world_at(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t rank, std::int64_t size,
               const WorldOptions& options = {});

// The group as a backend of c10d, to be registered with a ProcessGroup for CPU tensors (setBackend, as
// BackendType::CUSTOM). It keeps the group and its world; its end blocks for works whose futures were asked for. It has
// all operations of c10d but those on sparse tensors, receiving from any source, splitting, merging and shrinking:
// ConfigError says so. (A reduce is an all-reduce that the root takes, gather and scatter are all-to-alls.) Works
// complete inside wait() and isCompleted(), or, once getFuture() was called, on a thread of the backend. Deadlines are
// the group's unless c10d gives one.
c10::intrusive_ptr<c10d::Backend> as_c10d_backend(const Group& group);

}  // namespace espalier
