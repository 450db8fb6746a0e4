// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/mpi/session.hpp"

#include <ATen/core/grad_mode.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/comm/backends/mpi/lifetime.hpp"

namespace espalier::detail::mpi {
namespace {

// MPI works only while it is called, and often: between two looks at a request its large messages move by one fragment.
constexpr int kSpins = 100;    // looks before the core is offered to others
constexpr int kBurst = 20;     // looks between two offers
constexpr int kYields = 5000;  // offers before the core is left to others for kNap each time
constexpr std::chrono::microseconds kNap{100};

// The thread looks again so often after it had something to do, which costs less than to wake it for every operation.
constexpr std::chrono::milliseconds kWatch{1};
constexpr int kWatches = 50;  // until it sleeps

// How long the thread rests between two looks: longer the longer nothing has ended, so that ranks that share a core do
// not keep each other from it. Large messages go in pieces, a few with each look.
constexpr std::chrono::microseconds kShortRest{50}, kLongRest{1000}, kRestOfLarge{100};
constexpr std::size_t kLarge = 64 * 1024;

Clock::duration rest_of_thread(Clock::duration since_an_end, std::size_t largest_bytes) {
  return std::clamp<Clock::duration>(since_an_end / 16, kShortRest, largest_bytes < kLarge ? kLongRest : kRestOfLarge);
}

// Between two looks at what others have to do.
void rest(std::int64_t looks) {
  if (looks < kSpins || looks % kBurst != 0) return;
  if (looks < kBurst * kYields) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(kNap);
  }
}

std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return std::string(text.data(), static_cast<std::size_t>(length));
}

// Why requests of which MPI_Testall says `code` failed; empty: they did not.
std::string trouble_of(const Pending& pending, int code) {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(code, &error_class);
  if (error_class != MPI_SUCCESS && error_class != MPI_ERR_IN_STATUS) return text_of(code);
  for (std::size_t i = 0; i < pending.requests.size(); ++i) {
    const MPI_Status& status = pending.statuses[i];
    if (error_class == MPI_ERR_IN_STATUS && status.MPI_ERROR == MPI_ERR_PENDING) continue;
    if (error_class == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) return text_of(status.MPI_ERROR);
    if (i >= pending.received_bytes.size()) continue;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (bytes != pending.received_bytes[i])
      return fmt::format("{} bytes came instead of {}; the tensor must have the sender's dtype and number of elements",
                         bytes, pending.received_bytes[i]);
  }
  return "";
}

// What MPI may read and write for as long as the process lives.
void park_for_ever(std::vector<std::shared_ptr<Pending>> pending) {
  leave_mpi_unfinalised();
  (void)new std::vector<std::shared_ptr<Pending>>(std::move(pending));
}

}  // namespace

void checked(int code, std::string_view what) {
  if (code != MPI_SUCCESS) throw CommError(fmt::format("mpi: {} failed: {}", what, text_of(code)));
}

void wait_for_all_ranks(std::chrono::milliseconds timeout) {
  MPI_Request request = MPI_REQUEST_NULL;
  checked(MPI_Ibarrier(MPI_COMM_WORLD, &request), "MPI_Ibarrier");
  const auto deadline = Clock::now() + timeout;
  for (std::int64_t looks = 0;; ++looks) {
    int ended = 0;
    checked(MPI_Test(&request, &ended, MPI_STATUS_IGNORE), "MPI_Test");
    if (ended != 0) return;
    if (Clock::now() >= deadline) {
      leave_mpi_unfinalised();
      throw CommError(fmt::format(
          "world: not all ranks that MPI started came within {} ms; all of them must make the world", timeout.count()));
    }
    rest(looks);
  }
}

Session::Session(const MpiOptions& options) : options_(options) {
  checked(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "duplicating MPI_COMM_WORLD");
  checked(MPI_Comm_dup(world_, &meeting_), "duplicating the world");
  for (const MPI_Comm comm : {world_, meeting_}) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int rank = 0;
  checked(MPI_Comm_rank(world_, &rank), "MPI_Comm_rank");
  rank_ = rank;
  int* bound = nullptr;
  int is_set = 0;
  checked(MPI_Comm_get_attr(world_, MPI_TAG_UB, &bound, &is_set), "looking up the largest tag");
  largest_tag_ = is_set != 0 ? *bound : 32767;  // what the standard promises at least
  start_thread();
}

Session::~Session() { close(); }

void Session::check() const {
  if (!poison_.empty()) throw CommError(poison_);
  if (closed_)
    throw CommError(fmt::format("rank {} has closed this world; nothing can be called on it any more", rank_));
}

void Session::fail(std::string reason) {
  if (poison_.empty()) poison_ = std::move(reason);
  throw CommError(poison_);
}

void Session::abort(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (poison_.empty()) poison_ = reason;
}

// ---- requests ----

std::shared_ptr<Pending> Session::post(std::vector<at::Tensor> tensors, std::function<std::string()> name,
                                       const std::function<void(Pending&)>& start) {
  auto pending = std::make_shared<Pending>();
  pending->tensors = std::move(tensors);
  pending->name = std::move(name);
  const std::lock_guard lock(mutex_);
  check();
  under_way_.push_back(pending);
  try {
    start(*pending);
  } catch (const CommError& error) {  // some may have started
    fail(fmt::format("{}: {}", pending->name(), error.what()));
  }
  pending->statuses.resize(pending->requests.size());
  attend();
  return pending;
}

bool Session::ended(Pending& pending) {
  if (!pending.requests.empty()) {
    int all = 0;
    const int code =
        MPI_Testall(static_cast<int>(pending.requests.size()), pending.requests.data(), &all, pending.statuses.data());
    if (code == MPI_SUCCESS && all == 0) return false;
    if (const std::string trouble = trouble_of(pending, code); !trouble.empty()) {
      if (poison_.empty()) poison_ = fmt::format("{} failed on rank {}: {}", pending.name(), rank_, trouble);
      return false;
    }
    pending.requests.clear();
  }
  if (pending.finish) {
    const at::NoGradGuard no_grad;
    std::exchange(pending.finish, nullptr)();
  }
  return true;
}

bool Session::test(Pending& pending) {
  const std::lock_guard lock(mutex_);
  if (pending.has_ended()) return true;
  check();
  const bool result = ended(pending);
  check();
  if (result) forget(pending);
  return result;
}

void Session::wait(Pending& pending, Clock::time_point deadline) {
  const auto since = Clock::now();
  std::unique_lock lock(mutex_);
  if (pending.has_ended()) return;
  struct Waiter {
    Session& session;
    explicit Waiter(Session& the_session) : session(the_session) { ++session.waiters_; }
    ~Waiter() {
      if (--session.waiters_ == 0 && !session.under_way_.empty()) session.attend();
    }
  } waiter{*this};
  for (std::int64_t looks = 0; !pending.has_ended(); ++looks) {
    check();
    if (looks % kSpins == 0) {
      look();
    } else {
      ended(pending);
    }
    check();
    if (pending.has_ended()) break;
    if (Clock::now() >= deadline) {
      fail(fmt::format("{} timed out after {} ms on rank {}; mpi does not know which member is late", pending.name(),
                       (Clock::now() - since) / std::chrono::milliseconds(1), rank_));
    }
    lock.unlock();
    rest(looks);
    lock.lock();
  }
  forget(pending);
  waited_ns_ += std::chrono::nanoseconds(Clock::now() - since).count();
}

void Session::look() {
  std::erase_if(under_way_, [this](const std::shared_ptr<Pending>& pending) { return ended(*pending); });
}

void Session::forget(const Pending& pending) {
  std::erase_if(under_way_, [&](const std::shared_ptr<Pending>& one) { return one.get() == &pending; });
}

// ---- the thread ----

void Session::start_thread() {
  try {
    thread_ = std::thread([this] { run_thread(); });
  } catch (const std::system_error& error) {
    throw CommError(fmt::format("mpi: rank {} cannot start a thread: {}", rank_, error.what()));
  }
}

// Sees to it that what is under way goes on when the rank does something else.
void Session::attend() {
  if (std::exchange(thread_sleeps_, false)) attended_.notify_all();
}

void Session::run_thread() {
  std::unique_lock lock(mutex_);
  const auto doze = [&](Clock::duration time) { attended_.wait_for(lock, time, [&] { return closed_; }); };
  auto last_end = Clock::now();
  try {
    for (int watches = 0; !closed_ && poison_.empty();) {
      if (waiters_ == 0 && !under_way_.empty()) {
        const std::size_t before = under_way_.size();
        if (!in_background([&] { look(); })) return;
        const auto now = Clock::now();
        if (watches > 0 || under_way_.size() < before) last_end = now;
        watches = 0;
        std::size_t largest = 0;
        for (const auto& pending : under_way_) largest = std::max(largest, pending->bytes());
        doze(rest_of_thread(now - last_end, largest));
      } else if (watches++ < kWatches) {
        doze(kWatch);
      } else {
        thread_sleeps_ = true;
        attended_.wait(lock, [&] { return closed_ || !thread_sleeps_; });
      }
    }
  } catch (const std::exception& error) {
    if (poison_.empty()) poison_ = error.what();
  }
}

void Session::close() {
  std::unique_lock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  attended_.notify_all();
  lock.unlock();
  thread_.join();
  lock.lock();
  if (is_finalised()) return;
  look();
  const auto owes = [&] { return std::ranges::any_of(under_way_, [](const auto& pending) { return pending->owes; }); };
  if (std::uncaught_exceptions() == 0) {
    const auto deadline = Clock::now() + options_.timeout;
    for (std::int64_t looks = 0; poison_.empty() && owes() && Clock::now() < deadline; ++looks) {
      lock.unlock();
      rest(looks);
      lock.lock();
      look();
    }
  }
  for (const auto& pending : under_way_) {
    if (!pending->owes) continue;
    Log(options_.log, fmt::format("[rank {}] ", rank_))
        .warning(fmt::format(
            "mpi backend: the world was closed before {} was handed over, and it is lost: {}", pending->name(),
            !poison_.empty()                  ? poison_
            : std::uncaught_exceptions() == 0 ? fmt::format("not taken within {} ms", options_.timeout.count())
                                              : "an error ends this rank"));
  }
  if (!under_way_.empty() || !poison_.empty()) {
    park_for_ever(std::move(under_way_));
    return;
  }
  groups_.push_back(meeting_);
  groups_.push_back(world_);
  for (MPI_Comm& comm : groups_) MPI_Comm_free(&comm);
}

// ---- groups ----

// An empty message to or from a world rank.
std::shared_ptr<Pending> Session::exchange_word(bool sends, std::int64_t peer, int tag) {
  return post(
      {}, [] { return std::string("meeting the members of a group"); },
      [&](Pending& pending) {
        const int other = static_cast<int>(peer);
        MPI_Request& request = pending.requests.emplace_back(MPI_REQUEST_NULL);
        pending.owes = sends;
        checked(sends ? MPI_Isend(nullptr, 0, MPI_BYTE, other, tag, meeting_, &request)
                      : MPI_Irecv(nullptr, 0, MPI_BYTE, other, tag, meeting_, &request),
                sends ? "MPI_Isend" : "MPI_Irecv");
      });
}

// Returns once all members are there: each says so to the first of them, which then answers all.
void Session::meet(const RankSet& members, std::string_view name, int tag) {
  const std::int64_t first = members.member(0);
  // The others wait a second longer: the first member, which knows who is missing, is to say it.
  const auto deadline = Clock::now() + options_.timeout + std::chrono::seconds(rank_ == first ? 0 : 1);
  std::vector<std::pair<std::int64_t, std::shared_ptr<Pending>>> awaited;
  if (rank_ == first) {
    for (const std::int64_t member : members.to_vector()) {
      if (member != first) awaited.emplace_back(member, exchange_word(false, member, tag));
    }
  } else {
    (void)exchange_word(true, first, tag);
    awaited.emplace_back(first, exchange_word(false, first, tag));
  }
  for (std::int64_t looks = 0; !awaited.empty(); ++looks) {
    std::erase_if(awaited, [&](const auto& entry) { return test(*entry.second); });
    if (Clock::now() >= deadline && !awaited.empty()) {
      std::vector<std::int64_t> missing;
      for (const auto& [peer, pending] : awaited) {
        missing.push_back(peer);
      }
      const std::lock_guard lock(mutex_);
      fail(fmt::format("group '{}' {}: not connected within {} ms; rank {} did not come{}", name, members.to_string(),
                       options_.timeout.count(), fmt::join(missing, ", "),
                       rank_ == first ? "" : ", or waits for others that did not"));
    }
    rest(looks);
  }
  if (rank_ != first) return;
  for (const std::int64_t member : members.to_vector()) {
    if (member != first) (void)exchange_word(true, member, tag);
  }
}

MPI_Comm Session::connect(const RankSet& members, std::string_view name, std::uint64_t context) {
  const int tag = static_cast<int>(context % static_cast<std::uint64_t>(largest_tag_));
  meet(members, name, tag);  // MPI_Comm_create_group has no deadline
  const std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (const std::int64_t member : members.to_vector()) ranks.push_back(static_cast<int>(member));
  MPI_Group all = MPI_GROUP_NULL, ours = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  checked(MPI_Comm_group(world_, &all), "MPI_Comm_group");
  checked(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &ours), "MPI_Group_incl");
  checked(MPI_Comm_create_group(world_, ours, tag, &comm), "MPI_Comm_create_group");
  MPI_Group_free(&ours);
  MPI_Group_free(&all);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  groups_.push_back(comm);
  return comm;
}

}  // namespace espalier::detail::mpi
