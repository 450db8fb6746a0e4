// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/launch/launch.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/plan/launch/supervisor.hpp"

namespace espalier {

namespace {

using detail::ChildSpec;
using detail::Supervisor;

// Where the ranks meet: a port that is bound before any of them runs, so nobody else can take it.
// Only rank 0 gets the descriptor.
class MeetingPlace {
 public:
  MeetingPlace() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    const bool bound = descriptor_ >= 0 && bind(descriptor_, generic, size) == 0 &&
                       listen(descriptor_, SOMAXCONN) == 0 && getsockname(descriptor_, generic, &size) == 0;
    const int number = errno;
    if (!bound) shut();
    ESPALIER_CHECK_CONFIG(bound,
                          "launch: no port on 127.0.0.1 for the ranks to meet at: {}; bring the "
                          "loopback interface up",
                          std::strerror(number));
    port_ = ntohs(address.sin_port);
  }
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;
  ~MeetingPlace() { shut(); }

  int descriptor() const { return descriptor_; }
  int port() const { return port_; }
  void shut() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }

 private:
  int descriptor_;
  int port_ = 0;
};

}  // namespace

std::string make_job_name() {
  std::uint64_t number = 0;
  const ssize_t got = getrandom(&number, sizeof number, 0);
  return fmt::format("{}-{:x}", getpid(), got == sizeof number ? number : 0);
}

int launch_ranks(const LaunchOptions& options) {
  ESPALIER_CHECK_CONFIG(options.num_ranks >= 1, "launch: {} ranks; at least 1 is needed", options.num_ranks);
  ESPALIER_CHECK_CONFIG(!options.command.empty(),
                        "launch: no program; give one after the options, as in -n 2 -- ./program");
  MeetingPlace meeting;
  const Variables base = with_variables(process_variables(), options.variables);
  const std::string job = make_job_name();
  std::vector<ChildSpec> ranks;
  for (std::int64_t rank = 0; rank < options.num_ranks; ++rank) {
    const int store = rank == 0 ? meeting.descriptor() : -1;
    const Assignment assignment{.rank = rank,
                                .num_ranks = options.num_ranks,
                                .local_rank = rank,
                                .local_size = options.num_ranks,
                                .address = "127.0.0.1",
                                .port = meeting.port(),
                                .store_descriptor = store,
                                .job = job};
    ranks.push_back({.command = options.command,
                     .variables = variables_of_rank(base, assignment),
                     .standard_input = rank == 0 && isatty(STDIN_FILENO) == 0 ? STDIN_FILENO : -1,
                     .kept_descriptor = store});
  }
  Supervisor::Policy policy{.speaker = options.speaker, .name_of = [&](std::size_t rank, pid_t pid) {
                              return fmt::format("rank {} of {} (pid {})", rank, options.num_ranks, pid);
                            }};
  policy.explained_codes = options.explained_codes;
  policy.stop_time = options.stop_time;
  Supervisor supervisor(policy, std::move(ranks));
  meeting.shut();  // from here on rank 0 alone holds it
  return supervisor.run();
}

}  // namespace espalier
