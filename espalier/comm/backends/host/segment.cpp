// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/host/segment.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>

#include "espalier/base/check.hpp"

namespace espalier::detail::host {
namespace {

constexpr std::uint64_t kMagic = 0x6573'7061'6c69'0002;  // "espali", version of this layout
constexpr std::string_view kSegmentKey = "host/segment";

// The one place where a failed system call becomes an error.
[[noreturn]] void fail_system_call(std::string_view what) {
  throw CommError(fmt::format("host transport: {} failed: {} (errno {})", what, std::strerror(errno), errno));
}

int checked(int result, std::string_view what) {
  if (result == -1) fail_system_call(what);
  return result;
}

std::size_t rounded_to_page(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

Segment::Segment(std::int64_t num_ranks, std::int64_t arena_bytes, std::int64_t buffer_bytes, int fd)
    : num_ranks_(num_ranks),
      arena_bytes_(arena_bytes),
      buffer_bytes_(static_cast<std::int64_t>(rounded_to_page(static_cast<std::size_t>(buffer_bytes)))),
      fd_(fd) {
  const std::size_t slots_at = rounded_to_page(sizeof(Header));
  const std::size_t rings_at = slots_at + rounded_to_page(sizeof(RankSlot) * static_cast<std::size_t>(num_ranks));
  const std::size_t arenas_at =
      rings_at + rounded_to_page(sizeof(Ring) * static_cast<std::size_t>(num_ranks * num_ranks));
  const std::size_t buffers_at = arenas_at + rounded_to_page(static_cast<std::size_t>(arena_bytes * num_ranks));
  struct stat status{};
  checked(::fstat(fd, &status), "fstat of the shared memory");
  if (status.st_size == 0) {
    mapped_bytes_ = buffers_at + static_cast<std::size_t>(buffer_bytes_ * num_ranks);
    checked(::ftruncate(fd, static_cast<off_t>(mapped_bytes_)),
            fmt::format("sizing {} bytes of shared memory", mapped_bytes_));
  } else {
    mapped_bytes_ = static_cast<std::size_t>(status.st_size);
    ESPALIER_CHECK(mapped_bytes_ >= buffers_at, "shared memory has {} bytes, expected {} at least", mapped_bytes_,
                   buffers_at);
    buffer_bytes_ = static_cast<std::int64_t>(mapped_bytes_ - buffers_at) / num_ranks;
  }
  void* mapped = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (mapped == MAP_FAILED) {
    fail_system_call(
        fmt::format("mapping {} bytes of shared memory, {} for each rank's host_buffer (ESPALIER_HOST_BUFFER_BYTES),",
                    mapped_bytes_, buffer_bytes_));
  }
  base_ = static_cast<char*>(mapped);
  slots_ = reinterpret_cast<RankSlot*>(base_ + slots_at);
  rings_ = reinterpret_cast<Ring*>(base_ + rings_at);
  arenas_ = base_ + arenas_at;
  buffers_ = base_ + buffers_at;
}

Segment::~Segment() {
  ::munmap(base_, mapped_bytes_);
  close_descriptor();
}

void Segment::populate(std::int64_t rank) const {
  constexpr std::size_t kBytes = offsetof(Ring, descriptors) + 4 * sizeof(Descriptor);
  const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto populate_first = [&](const Ring& ring) {
    const auto begin = reinterpret_cast<std::uintptr_t>(&ring), page = begin / page_bytes * page_bytes;
    ::madvise(reinterpret_cast<void*>(page), begin + kBytes - page,
              MADV_POPULATE_WRITE);  // before Linux 5.14: refused, and slower later
  };
  for (std::int64_t peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank) continue;
    populate_first(ring(rank, peer));
    populate_first(ring(peer, rank));
  }
}

void Segment::close_descriptor() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::shared_ptr<Segment> Segment::for_threads(std::int64_t num_ranks, std::int64_t arena_bytes,
                                              std::int64_t buffer_bytes) {
  const int fd = checked(::memfd_create("espalier", MFD_CLOEXEC), "memfd_create");
  std::shared_ptr<Segment> segment(new Segment(num_ranks, arena_bytes, buffer_bytes, fd));
  segment->close_descriptor();
  return segment;
}

std::shared_ptr<Segment> Segment::for_processes(Store& store, std::int64_t rank, std::int64_t num_ranks,
                                                std::int64_t arena_bytes, std::int64_t buffer_bytes,
                                                const RankNames& names, std::chrono::milliseconds timeout) {
  const std::int64_t first = names.world_rank(0), me = names.world_rank(rank);
  if (rank == 0) {
    const int fd = checked(::memfd_create("espalier", MFD_CLOEXEC), "memfd_create");
    std::shared_ptr<Segment> segment(new Segment(num_ranks, arena_bytes, buffer_bytes, fd));
    segment->header().num_ranks = static_cast<std::uint64_t>(num_ranks);
    segment->header().arena_bytes = static_cast<std::uint64_t>(arena_bytes);
    segment->header().magic = kMagic;
    store.set(kSegmentKey, fmt::format("/proc/{}/fd/{}\n{}", ::getpid(), fd, host_identity()));
    return segment;
  }
  const std::string published = store.get(kSegmentKey, timeout);
  const std::size_t newline = published.find('\n');
  ESPALIER_CHECK(newline != std::string::npos, "malformed entry '{}' in the store", published);
  const std::string path = published.substr(0, newline);
  const std::string identity = published.substr(newline + 1);
  ESPALIER_CHECK_CONFIG(identity == host_identity(),
                        "host backend: rank {} cannot share memory with rank {}, which runs in '{}', this rank in '{}' "
                        "(boot id, pid namespace); use the gloo backend between hosts or containers",
                        me, first, identity, host_identity());
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ESPALIER_CHECK_CONFIG(
      fd >= 0, "host backend: rank {} cannot open rank {}'s shared memory {}: {}; {}", me, first, path,
      std::strerror(errno),
      errno == ENOENT ? fmt::format("rank {} has ended or all ranks have joined: was this rank started twice?", first)
                      : "run all ranks as the same user, or use the gloo backend");
  std::shared_ptr<Segment> segment(new Segment(num_ranks, arena_bytes, buffer_bytes, fd));
  ESPALIER_CHECK_CONFIG(segment->header().magic == kMagic &&
                            segment->header().num_ranks == static_cast<std::uint64_t>(num_ranks) &&
                            segment->header().arena_bytes == static_cast<std::uint64_t>(arena_bytes),
                        "host backend: rank {} found the shared memory of another version or of a world of {} ranks, "
                        "expected {}; start all ranks from the same build",
                        me, segment->header().num_ranks, num_ranks);
  return segment;
}

std::string host_identity() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat status{};
  checked(::stat("/proc/self/ns/pid", &status), "looking up the pid namespace");
  return fmt::format("{} pid:{}", boot_id, status.st_ino);
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::microseconds at_most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const std::timespec limit{static_cast<std::time_t>(seconds.count()),
                            static_cast<long>(std::chrono::nanoseconds(at_most - seconds).count())};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);  // every way to return means: look again
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace espalier::detail::host
