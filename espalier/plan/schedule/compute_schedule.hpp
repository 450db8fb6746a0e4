// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

// What a rank computes for one micro-batch on one of its chunks.
enum class Pass : std::uint8_t {
  forward,
  backward,         // gradients of input and weights
  backward_input,   // the half that the stage before waits for
  backward_weight,  // the other half, at any time after it
};

// F B I W, as in listings.
std::string_view code(Pass pass);

struct ComputeStep {
  Pass pass;
  std::int32_t micro_batch;
  std::int32_t chunk;
  friend bool operator==(const ComputeStep&, const ComputeStep&) = default;
};

// "F2.1": forward of micro-batch 2 on chunk 1.
std::string to_string(const ComputeStep& step);

// Which rank holds which part of the model: it is cut into ranks x chunks stages, and every rank has one of each chunk.
struct ChunkPlaces {
  enum class Shape : std::uint8_t {
    loop,  // stage = chunk x ranks + rank: the last rank hands over to the first
    v,     // every other chunk goes back: the last rank hands over to itself
  };
  std::int64_t num_ranks = 1;
  std::int64_t num_chunks = 1;
  Shape shape = Shape::loop;

  std::int64_t num_stages() const { return num_ranks * num_chunks; }
  std::int64_t stage(std::int64_t rank, std::int64_t chunk) const;
  std::int64_t rank_of(std::int64_t stage) const;
};

// What every rank computes, in which order, without what it sends and receives for that: a result goes to the rank of the
// next stage (or, of a backward pass, of the stage before), and whoever needs one waits for it.
struct ComputeSchedule {
  std::string name;
  std::int64_t num_micro_batches = 0;
  ChunkPlaces places;
  std::vector<std::vector<ComputeStep>> ranks;
};

struct ComputeReport {
  std::vector<std::string> errors;  // empty: the schedule is sound
  // Per rank of a sound schedule: most chunks' activations at a time, each kept from its forward to the end of its
  // backward, both halves.
  std::vector<std::int64_t> peak_live;

  bool ok() const { return errors.empty(); }
};

// Proves that every rank forwards each micro-batch once on each of its chunks, then backwards it once, whole or in halves in
// their order, and that all ranks reach their end. Never throws on a bad schedule: `errors` says which rank and step is at
// fault, and of a deadlock which ranks wait for which step of each other. O(steps).
ComputeReport check(const ComputeSchedule& schedule);

}  // namespace espalier
