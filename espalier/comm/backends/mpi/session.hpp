// SPDX-License-Identifier: Apache-2.0
// Private: what all groups of one rank over MPI share. MPI works only while it is called, so a thread looks at what is
// under way whenever no thread of the rank does, and sleeps while nothing is. MPI can neither cancel a collective nor
// say that a peer has gone: what is pending at a deadline stays pending, so its requests and its memory are parked for
// ever.
#pragma once

#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "espalier/comm/backends/mpi/mpi.hpp"

namespace espalier::detail::mpi {

// The one place where a code that MPI returned becomes an error.
void checked(int code, std::string_view what);

// Blocks until all ranks of MPI have called it; CommError at the time-out.
void wait_for_all_ranks(std::chrono::milliseconds timeout);

// Requests under way, and the memory they read and write.
struct Pending {
  std::vector<MPI_Request> requests;
  std::vector<MPI_Status> statuses;
  std::vector<int> received_bytes;  // of a receive: what each request must bring
  std::vector<at::Tensor> tensors;
  std::function<std::string()> name;  // "all_reduce(sum, float32 x 4) #3 of group 'data' [0,2]"
  std::function<void()> finish;       // once all have ended
  bool owes = true;                   // others wait for what this rank does in it: not of a receive

  bool has_ended() const { return requests.empty() && !finish; }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const at::Tensor& tensor : tensors) sum += tensor.defined() ? tensor.nbytes() : 0;
    return sum;
  }
};

class Session {
 public:
  // Duplicates MPI_COMM_WORLD: all ranks must call, and blocks until they do.
  explicit Session(const MpiOptions& options);
  ~Session();  // closes
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // A communicator of these world ranks. Blocks until all of them have come, at most for the time-out; CommError names
  // who did not.
  MPI_Comm connect(const RankSet& members, std::string_view name, std::uint64_t context);

  // Starts requests; `start` fills in what they are, and is called with the lock held.
  std::shared_ptr<Pending> post(std::vector<at::Tensor> tensors, std::function<std::string()> name,
                                const std::function<void(Pending&)>& start);
  // Whether all have ended; they do so by themselves.
  bool test(Pending& pending);
  void wait(Pending& pending, Clock::time_point deadline);

  void abort(std::string_view reason);
  // Ends what others wait for, at most for the time-out, logs what did not, and ends this world here.
  void close();

  std::chrono::milliseconds timeout() const { return options_.timeout; }
  double wait_seconds() const { return static_cast<double>(waited_ns_.load()) * 1e-9; }
  std::int64_t rank() const { return rank_; }
  std::int64_t largest_tag() const { return largest_tag_; }

  std::atomic<std::int64_t> bytes_sent{0};

 private:
  // These are called with the lock held.
  void check() const;
  bool ended(Pending& pending);  // a request that failed poisons the world
  void look();                   // at all that is under way
  void forget(const Pending& pending);
  void attend();
  [[noreturn]] void fail(std::string reason);

  void start_thread();
  void run_thread();
  void meet(const RankSet& members, std::string_view name, int tag);
  std::shared_ptr<Pending> exchange_word(bool sends, std::int64_t peer, int tag);

  const MpiOptions options_;
  std::mutex mutex_;  // of what follows; also keeps requests from being tested by two threads at a time
  std::int64_t rank_ = 0;
  MPI_Comm world_ = MPI_COMM_NULL;    // groups are made from it
  MPI_Comm meeting_ = MPI_COMM_NULL;  // those who will be a group find each other on it
  int largest_tag_ = 0;
  std::vector<MPI_Comm> groups_;
  std::vector<std::shared_ptr<Pending>> under_way_;
  std::string poison_;
  bool closed_ = false;
  int waiters_ = 0;                   // threads of this rank in wait()
  bool thread_sleeps_ = false;        // until it is woken
  std::condition_variable attended_;  // wakes the thread
  std::thread thread_;
  std::atomic<std::int64_t> waited_ns_{0};
};

}  // namespace espalier::detail::mpi
