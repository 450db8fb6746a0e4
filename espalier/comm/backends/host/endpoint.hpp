// SPDX-License-Identifier: Apache-2.0
// Private: one rank's end of the shared memory. It drains all incoming rings into the operations they belong to (or
// keeps what comes early), advances every operation under way, and does the waiting and the watching of peers.
// Everything runs under one mutex, inside calls of the rank's own threads; while none of them waits, a thread of the
// endpoint's own takes part in what is under way, and sleeps until there is something to do.
//
// Nothing a peer does or omits can block it: what finds no room is tried again in the next call, and a rank that runs
// out of room asks its readers, who then copy what they hold of its arena to memory of their own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "espalier/base/log.hpp"
#include "espalier/comm/backends/host/arena.hpp"
#include "espalier/comm/backends/host/buffers.hpp"
#include "espalier/comm/backends/host/segment.hpp"
#include "espalier/comm/backends/host/task.hpp"
#include "espalier/comm/communicator.hpp"

namespace espalier::detail::host {

struct EndpointOptions {
  std::chrono::milliseconds timeout{300'000};
  std::int64_t copies_limit_bytes = std::int64_t{4} << 30;  // copies of sent and of early tensors outside the arenas
  LogSink log{};                                            // told what was lost at closing
  std::string postmortem{};                                 // file to write when the world fails; empty: none
  RankNames names{};
};

// Room for one payload, to be filled and dispatched at once.
struct Parcel {
  char* data = nullptr;
  std::size_t bytes = 0;
  Arena::Room room;  // offset 0: inline
};

class Endpoint {
 public:
  // Joins the segment; a rank that is a process waits there for all others. CommError naming who is missing.
  Endpoint(std::shared_ptr<Segment> segment, std::int64_t rank, bool is_thread, const EndpointOptions& options);
  ~Endpoint();  // closes
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // The communication space of these ranks; made at the first call.
  Space& space(std::span<const std::int64_t> members, std::string_view name, std::uint64_t context);

  // Starts an operation. CommError when the world is poisoned or this call contradicts another rank's.
  void post(const std::shared_ptr<Task>& task);
  bool poll(Task& task);
  void wait(Task& task, Clock::time_point deadline);

  // ---- for a transport on top of this one ----

  // What has ended this world, after a look at its peers and what they sent; empty: nothing.
  std::string failure();
  // "waiting for rank 1 (pid 7): its last call is ...", and what the others do.
  std::string describe_wait(const Task& task);

  // What this rank is at, shown with its calls from now on.
  void note(std::string_view during);

  // Tells all that this rank has given up.
  void abort(std::string_view reason);

  // Leaves. What others may need of the operations posted here is put into shared memory first, which waits for room,
  // at most for the time-out; what then is lost, and to whom, is logged. Does not wait in a poisoned world, nor while
  // an exception unwinds the stack. Later calls throw.
  void close();

  // A tensor in this rank's buffers. CommError when the world is poisoned or closed, ConfigError above the limit.
  at::Tensor buffer(at::IntArrayRef sizes, at::ScalarType dtype);
  // Where these bytes lie in this rank's buffers, if they do.
  std::optional<std::uint64_t> place_of(const void* data, std::size_t bytes) const {
    return buffers_->place_of(data, bytes);
  }

  std::chrono::milliseconds timeout() const { return options_.timeout; }
  double wait_seconds() const { return static_cast<double>(waited_ns_.load(std::memory_order_relaxed)) * 1e-9; }
  std::int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  std::int64_t rank() const { return rank_; }
  // Messages taken from the rings that no operation has used up: those of operations not posted here yet.
  std::int64_t num_unexpected_messages();

  // ---- for tasks, under the mutex ----

  // Room for `bytes` to these world ranks; false: none now, the task stays due.
  bool reserve(std::span<const std::int32_t> to, std::size_t bytes, Parcel& parcel);
  // Sends what was reserved; `descriptor` says what it is a part of.
  void dispatch(std::span<const std::int32_t> to, Descriptor& descriptor, const Parcel& parcel);
  // Whether the readers of a block are through; false asks to be woken when some block is.
  bool released(const Arena::Room& room);
  void release(Message* message);
  // Sends what lies at `descriptor.place` of this rank's buffers without copying it; nothing: no room, as with reserve.
  // It must stay as it is until it is returned, and nobody but the borrowers may touch it when they may write.
  std::optional<Loan> lend(std::span<const std::int32_t> to, Descriptor& descriptor);
  // Whether all are through with it; false asks to be woken when some are.
  bool returned(const Loan& loan);
  void count_sent(std::size_t bytes) {
    bytes_sent_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  // Counts memory held outside the arenas; fails the world above the limit.
  void add_copies(std::int64_t bytes, const Task& task);
  // Poisons the world on every rank and throws.
  [[noreturn]] void fail(std::string text);
  // "rank 3 (pid 1234)", or "rank 3 (pid 1234 on node1)".
  std::string describe_rank(std::int64_t rank) const;

 private:
  static constexpr auto kTick = std::chrono::milliseconds(10);  // how often a waiting rank looks whether its peers live

  void attach();
  void watch_peers();
  void release_all();
  bool give_back(std::int64_t owner, std::uint64_t block, Lent lent, std::int64_t reader);
  void unhold(Message* message);
  bool rings_have_room(std::span<const std::int32_t> to);
  void push(std::span<const std::int32_t> to, const Descriptor& descriptor, const char* inline_data);
  void adapt_spin(int rounds_needed);
  static constexpr int kYields = 40;
  // One wait, look by look: it spins between them, later yields, then sleeps until its bell.
  struct Patience {
    int pauses = 0;
    int looks = 0;
    std::uint32_t bell = 0;
    std::uint64_t taken = 0;  // messages, before the look
    bool spins() const { return looks < pauses; }
    bool sleeps() const;
  };
  void before_look(Patience& patience, const Task* awaited);
  void after_look(Patience& patience, std::unique_lock<std::mutex>& lock, Clock::time_point deadline);
  void start_thread();
  void run_thread();
  void serve(std::unique_lock<std::mutex>& lock);
  void stop_thread(std::unique_lock<std::mutex>& lock);
  void attend();
  bool is_over() const;
  void hand_over(std::unique_lock<std::mutex>& lock);
  void report_lost(const Task& task, std::string_view why) const;
  void progress(const Task* on_behalf);
  void look();
  void drain();
  void advance_tasks();
  void route(Message* message);
  void deliver(Space& space, Message* message);
  void evict_for_starved();
  void show_starved(Starved starved);
  void check_failed(const Task* on_behalf);
  void check_peers(Task& task);
  void check_same_call(const Task& task);
  [[noreturn]] void fail_different(const Space& space, std::uint64_t sequence, const Call& mine, const Call& theirs,
                                   std::int64_t rank);
  void note_deaths();
  bool has_left(const Task& task, std::int64_t rank) const;
  std::vector<std::int32_t> gone(const Task& task) const;
  void check_left(Task& task);
  void note_death(std::int64_t rank);
  [[noreturn]] void fail_deadline(Task& task, std::chrono::nanoseconds waited);
  void publish_failure(std::string_view text);
  void claim_first_failure(std::int64_t culprit, std::string_view text);
  void ring(std::int64_t rank);
  void ring_for_message(std::int64_t rank);
  void wake(RankSlot& slot);
  void ring_all();
  Message* new_message();
  RankStatus status(std::int64_t rank) const;
  std::int64_t world_rank(std::int64_t rank) const { return options_.names.world_rank(rank); }
  std::string describe_last_call(std::int64_t rank) const;
  std::string describe_awaited(const Task& task) const;
  std::string describe_others(const Task& task) const;
  std::vector<std::int32_t> awaited_ranks(const Task& task) const;

  const std::shared_ptr<Segment> segment_;
  const std::int64_t rank_;
  const std::int64_t num_ranks_;
  const bool is_thread_;
  const EndpointOptions options_;
  const bool cores_for_all_;  // spinning takes nothing from a peer

  std::mutex mutex_;
  RankSlot& mine_;
  Arena arena_;
  const std::shared_ptr<Buffers> buffers_;
  std::array<char, kInlineBytes> inline_scratch_;
  Starved starved_ = Starved::no;             // as shown to the others
  Starved wants_ = Starved::no;               // found out in the pass under way
  std::vector<std::shared_ptr<Task>> tasks_;  // under way, oldest first
  std::vector<std::shared_ptr<Task>> ended_;  // to be let go of by a thread of the rank: they hold its tensors
  std::unordered_map<std::uint64_t, std::unique_ptr<Space>> spaces_;
  std::unordered_map<std::uint64_t, MessageQueue> orphans_;  // for spaces this rank has not made yet
  std::vector<std::unique_ptr<Message>> messages_;           // all there are
  std::vector<Message*> free_messages_;
  std::vector<Message*> held_;  // by source: messages that hold a block of its arena
  std::vector<int> pidfds_;     // by rank; -1: not watched
  std::int64_t copies_bytes_ = 0;
  Clock::time_point next_check_{};
  int sleepers_ = 0;         // threads of this rank that sleep on its bell
  int waiters_ = 0;          // threads of this rank in wait()
  std::uint64_t taken_ = 0;  // messages taken from rings so far
  int pauses_ = 0;           // how long the next wait spins before it yields
  bool closed_ = false;
  std::optional<std::string> failure_;
  FixedText<48> during_;
  std::atomic<std::int64_t> waited_ns_{0};
  std::atomic<std::int64_t> bytes_sent_{0};
  std::condition_variable attended_;  // wakes the thread
  bool thread_sleeps_ = false;        // until it is woken
  std::thread thread_;
};

}  // namespace espalier::detail::host
