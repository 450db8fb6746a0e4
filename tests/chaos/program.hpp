// SPDX-License-Identifier: Apache-2.0
// A random program of operations: what every rank of a world does, made from a seed alone. All ranks begin the steps
// they take part in, in this order; each waits for them in an order of its own (player.hpp).
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/comm/collectives.hpp"

namespace espalier::chaos {

// The same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(limit));
  }
  std::int64_t between(std::int64_t first, std::int64_t last) { return first + below(last - first + 1); }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<std::size_t>(below(static_cast<std::int64_t>(from.size())))];
  }

 private:
  std::uint64_t state_;
};

enum class Kind {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  all_gather_v,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  all_to_all_v,
  barrier,
  send,
  recv,
  save,  // all ranks write a tensor file each
};

struct Step {
  Kind kind = Kind::barrier;
  std::size_t group = 0;
  at::ScalarType dtype = at::kFloat;
  ReduceOp reduce = ReduceOp::sum;
  std::int64_t root = 0;      // of those that have one; send and recv: who sends
  std::int64_t receiver = 0;  // send and recv
  std::int64_t tag = 0;
  std::int64_t count = 0;      // elements of one part; the most of them where members' parts differ
  std::uint64_t values = 0;    // seed of the elements and of uneven parts; a message's is that of both its ends
  std::size_t settled_by = 0;  // all that it needs has been begun when step number `settled_by` has
  bool strided = false;        // tensors that are not contiguous
};

// A group: ascending world ranks, and the name of its own communication space; empty: the one of these ranks.
struct Members {
  std::vector<std::int64_t> ranks;
  std::string duplicate;
};

struct Program {
  std::uint64_t seed = 0;
  std::int64_t num_ranks = 0;
  std::vector<Members> groups;     // the first has all ranks
  std::vector<Step> steps;         // without the barrier of all ranks that ends every program
  std::vector<std::size_t> rests;  // after so many steps all that was begun can be waited for; the last is the end
};

struct ProgramOptions {
  std::int64_t num_ranks = 4;
  std::int64_t num_steps = 40;
  std::int64_t num_groups = 6;
  std::int64_t rest_every = 0;  // steps, about; 0: only at the end
  std::int64_t most_bytes = std::int64_t{1}
                            << 20;  // of a rank's tensor, about; sizes are spread evenly by their logarithm
};

Program make_program(std::uint64_t seed, const ProgramOptions& options);

// Whether the world rank has something to do in this step.
bool takes_part(const Program& program, const Step& step, std::int64_t rank);
bool is_collective(Kind kind);
// Whether host can tell these two calls apart before it looks at data.
bool same_call(const Step& a, const Step& b);
// "all_reduce(sum, float32 x 12) of group 3 [0,2]".
std::string describe(const Program& program, const Step& step);

}  // namespace espalier::chaos
