// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/local_meeting.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "espalier/base/check.hpp"

namespace espalier::detail {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

struct AbstractName {
  sockaddr_un address = {};
  socklen_t size = 0;
};

// The user is part of the name, so that nobody's job can be in another's way by accident.
AbstractName name_of(std::string_view job) {
  const std::string text = fmt::format("espalier/{}/{}", getuid(), job);
  AbstractName name;
  name.address.sun_family = AF_UNIX;  // sun_path[0] stays 0: abstract, so it vanishes with its socket
  const std::size_t length = std::min(text.size(), sizeof name.address.sun_path - 1);
  std::memcpy(name.address.sun_path + 1, text.data(), length);
  name.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return name;
}

const sockaddr* generic(const AbstractName& name) { return reinterpret_cast<const sockaddr*>(&name.address); }

int left_ms(Clock::time_point deadline) {
  return static_cast<int>(std::max<std::int64_t>(std::chrono::ceil<milliseconds>(deadline - Clock::now()).count(), 0));
}

LocalMeeting serve(const AbstractName& name, std::string_view job, std::int64_t size, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  Socket door(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ESPALIER_CHECK_CONFIG(bind(door.get(), generic(name), name.size) == 0 && listen(door.get(), SOMAXCONN) == 0,
                        "world: rank 0 of job '{}' cannot be reached by the others: {}; a rank 0 of this job may be "
                        "running "
                        "already: set MASTER_ADDR=127.0.0.1 and MASTER_PORT on all ranks instead",
                        job, std::strerror(errno));
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ESPALIER_CHECK_CONFIG(bind(listener.get(), any, length) == 0 && listen(listener.get(), SOMAXCONN) == 0 &&
                            getsockname(listener.get(), any, &length) == 0,
                        "world: no port on 127.0.0.1 for the ranks to meet at: {}; bring the loopback interface up",
                        std::strerror(errno));
  const int port = ntohs(address.sin_port);
  for (std::int64_t told = 1; told < size;) {
    pollfd wait{door.get(), POLLIN, 0};
    if (poll(&wait, 1, left_ms(deadline)) == 0)
      throw CommError(
          fmt::format("world: {} of {} ranks of job '{}' did not arrive within {} ms; start them, "
                      "or look why they "
                      "ended",
                      size - told, size, job, timeout.count()));
    const Socket guest(accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (guest.get() >= 0 && send(guest.get(), &port, sizeof port, MSG_NOSIGNAL) == sizeof port) ++told;
  }
  return {port, listener.release()};
}

LocalMeeting ask(const AbstractName& name, std::string_view job, std::int64_t rank, milliseconds timeout) {
  constexpr milliseconds kPause{10};
  const auto deadline = Clock::now() + timeout;
  while (true) {
    const Socket guest(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int port = 0;
    if (connect(guest.get(), generic(name), name.size) == 0) {
      pollfd wait{guest.get(), POLLIN, 0};
      if (poll(&wait, 1, left_ms(deadline)) > 0 && recv(guest.get(), &port, sizeof port, MSG_WAITALL) == sizeof port)
        return {port};
    }
    if (Clock::now() >= deadline)
      throw CommError(
          fmt::format("world: rank 0 of job '{}' did not answer rank {} within {} ms; start it, or "
                      "look why it ended",
                      job, rank, timeout.count()));
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

LocalMeeting meet_locally(std::string_view job, std::int64_t rank, std::int64_t size, milliseconds timeout) {
  const AbstractName name = name_of(job);
  return rank == 0 ? serve(name, job, size, timeout) : ask(name, job, rank, timeout);
}

}  // namespace espalier::detail
