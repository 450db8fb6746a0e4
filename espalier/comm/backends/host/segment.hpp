// SPDX-License-Identifier: Apache-2.0
// Private: the shared memory of one world on one host.
//
// header | one slot a rank | one ring of descriptors an ordered pair of ranks | one payload arena a rank | buffers, a
// rank
//
// Rings have one producer and one consumer. A descriptor carries a small payload itself; a larger one lies in a block
// of the producer's arena and counts its readers. A tensor that lies in the producer's buffers may be lent instead of
// copied: the block then has a byte for each rank, set by those who are through with it. Nothing here is per group.
// Pages are taken as they are used.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "espalier/comm/backends/host/history.hpp"
#include "espalier/comm/call.hpp"
#include "espalier/comm/store.hpp"

namespace espalier::detail::host {

inline constexpr std::uint64_t kRingSlots = 64;
inline constexpr std::size_t kInlineBytes = 168;
inline constexpr std::size_t kBlockAlign = 64;

// What the receivers of a payload in the sender's buffers do with it: read it, or also write to it.
enum class Lent : std::uint32_t { no, to_read, to_write };

// One message on its way: which operation it belongs to, and the payload or where it lies.
struct alignas(64) Descriptor {
  std::uint64_t context = 0;   // communication space
  std::uint64_t sequence = 0;  // number of the operation in it (collectives) or in its channel (point to point)
  std::int64_t tag = 0;        // point to point only
  Call call;
  std::uint64_t total_bytes = 0;  // of the stream this is a part of
  std::uint64_t block = 0;        // offset of the payload in the sender's arena; 0: the payload is inline
  std::uint64_t place = 0;        // lent: offset of the payload in the sender's buffers
  std::uint32_t bytes = 0;        // of this part
  std::uint32_t part = 0;
  std::uint32_t phase = 0;
  Lent lent = Lent::no;
  std::array<char, kInlineBytes> inline_data;
};
static_assert(sizeof(Descriptor) == 256);

struct Ring {
  alignas(64) std::atomic<std::uint64_t> head;  // written by the producer
  alignas(64) std::atomic<std::uint64_t> tail;  // written by the consumer
  alignas(64) std::array<Descriptor, kRingSlots> descriptors;
};

// A rank that is closing takes part in nothing new, but hands over what others wait for.
enum class RankStatus : std::uint32_t { absent, attached, closing, closed, failed, died };

// What a rank shows to the others.
struct RankSlot {
  alignas(64) std::atomic<std::uint32_t> bell;  // moves when a sleeper has something to do; the futex
  std::atomic<std::uint32_t> asleep;   // set before sleeping on the bell: messages until it wants to be woken; 0: awake
  std::atomic<std::uint32_t> starved;  // a Starved value: wants its bell rung when something is released
  alignas(64) std::atomic<std::uint32_t> status;
  std::atomic<std::int32_t> pid;
  std::atomic<std::uint32_t> is_thread;
  History history;                 // for other ranks' messages
  std::array<char, 2048> failure;  // written before status becomes failed
};
enum class Starved : std::uint32_t { no, waits_for_release, out_of_space };

struct Header {
  std::uint64_t magic;
  std::uint64_t num_ranks;
  std::uint64_t arena_bytes;
  alignas(64) std::atomic<std::uint32_t> attached;  // ranks so far; a futex
  std::atomic<std::uint32_t> first_failure;         // 1 + the rank whose failure or death ended the world; 0: none
};

// What the ranks of a segment are called in messages, where they are some of a larger world's.
struct RankNames {
  std::vector<std::int64_t> world_ranks{};  // by rank; empty: the same
  std::string host{};                       // theirs, named with each; empty: not named

  std::int64_t world_rank(std::int64_t rank) const {
    return world_ranks.empty() ? rank : world_ranks[static_cast<std::size_t>(rank)];
  }
};

// Precedes every payload in an arena.
struct alignas(kBlockAlign) BlockHeader {
  std::atomic<std::uint32_t> readers;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// A mapping of the segment. All ranks of a world that are threads share one; every process has its own.
class Segment {
 public:
  // Private to this process and its threads.
  static std::shared_ptr<Segment> for_threads(std::int64_t num_ranks, std::int64_t arena_bytes,
                                              std::int64_t buffer_bytes);
  // Rank 0 makes it, the others open it through /proc. Nothing has a name, so nothing stays behind. Blocks until rank 0
  // has published it. ConfigError when this process cannot reach rank 0's memory (other host or pid namespace). Buffers
  // are as large as rank 0 says.
  static std::shared_ptr<Segment> for_processes(Store& store, std::int64_t rank, std::int64_t num_ranks,
                                                std::int64_t arena_bytes, std::int64_t buffer_bytes,
                                                const RankNames& names, std::chrono::milliseconds timeout);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  RankSlot& slot(std::int64_t rank) const { return slots_[rank]; }
  Ring& ring(std::int64_t from, std::int64_t to) const { return rings_[from * num_ranks_ + to]; }
  char* arena(std::int64_t rank) const { return arenas_ + rank * arena_bytes_; }
  char* buffers(std::int64_t rank) const { return buffers_ + rank * buffer_bytes_; }
  BlockHeader& block(std::int64_t rank, std::uint64_t offset) const {
    return *reinterpret_cast<BlockHeader*>(arena(rank) + offset - sizeof(BlockHeader));
  }
  // In the block of a lent payload: whether this reader is through.
  std::atomic<std::uint8_t>& returned(std::int64_t owner, std::uint64_t offset, std::int64_t reader) const {
    return reinterpret_cast<std::atomic<std::uint8_t>*>(arena(owner) + offset)[reader];
  }
  // Brings the memory of this rank's first messages from and to all others into this process, at once rather than page
  // by page in the midst of them.
  void populate(std::int64_t rank) const;
  // Once every rank has opened it, nobody needs its file descriptor.
  void close_descriptor();

  std::int64_t num_ranks() const { return num_ranks_; }
  std::int64_t arena_bytes() const { return arena_bytes_; }
  std::int64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  // Takes the descriptor of a file, which is sized if it is empty.
  Segment(std::int64_t num_ranks, std::int64_t arena_bytes, std::int64_t buffer_bytes, int fd);

  std::int64_t num_ranks_;
  std::int64_t arena_bytes_;
  std::int64_t buffer_bytes_;  // of each rank
  int fd_;
  std::size_t mapped_bytes_ = 0;
  char* base_ = nullptr;
  RankSlot* slots_ = nullptr;
  Ring* rings_ = nullptr;
  char* arenas_ = nullptr;
  char* buffers_ = nullptr;
};

// Same text exactly for processes that can share memory and watch each other: boot id and pid namespace.
std::string host_identity();

// Waiting across processes: a non-private futex on one of the segment's words.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::microseconds at_most);
void futex_wake_all(std::atomic<std::uint32_t>& word);

}  // namespace espalier::detail::host
