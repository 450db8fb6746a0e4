// SPDX-License-Identifier: Apache-2.0
// Three nets: the kernel kills a child when its parent ends (PR_SET_PDEATHSIG), the guard kills
// what the children have started in their process groups, and a launch that ends by itself kills
// whatever it has adopted.
#include "espalier/plan/launch/child_process.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "espalier/base/check.hpp"
#include "espalier/base/read_file.hpp"

namespace espalier::detail {

namespace {

struct Pipe {
  int read_end;
  int write_end;
};

Pipe make_pipe() {
  std::array<int, 2> ends;
  ESPALIER_CHECK_CONFIG(pipe2(ends.data(), O_CLOEXEC) == 0,
                        "launch: no pipe for a rank's output: {}; raise the limit of open files (ulimit -n) or start "
                        "fewer ranks",
                        std::strerror(errno));
  return {ends[0], ends[1]};
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

// In the child, where only async-signal-safe calls are allowed. Returns the error number.
int become(const ChildSpec& spec, pid_t parent, int output, int error, char** argv, char** variables) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent ended before the line above
  const int input = spec.standard_input >= 0 ? spec.standard_input : open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input > STDIN_FILENO) dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(error, STDERR_FILENO);
  if (spec.kept_descriptor >= 0) fcntl(spec.kept_descriptor, F_SETFD, 0);
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &spec.signal_mask, nullptr);
  execvpe(argv[0], argv, variables);
  return errno;
}

// The guard's whole life: reads who is to be watched (> 0), forgotten (< 0), or that all is well
// (0), until the other end closes. Nothing is inherited that a reader of the launch's output could
// be waiting for.
[[noreturn]] void guard(int pipe) {
  setsid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) signal(number, SIG_IGN);
  if (const int nothing = open("/dev/null", O_RDWR); nothing >= 0)
    for (const int standard : {0, 1, 2}) dup2(nothing, standard);
  pipe = dup2(pipe, 3);
  close_range(4, ~0U, 0);
  std::vector<pid_t> groups;
  pid_t message = 0;
  while (true) {
    const ssize_t got = read(pipe, &message, sizeof message);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof message) break;
    if (message == 0) _exit(0);
    if (message > 0) groups.push_back(message);
    if (message < 0) std::erase(groups, -message);
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Child start_child(const ChildSpec& spec) {
  std::vector<std::string> words = spec.command;
  std::vector<std::string> settings;
  for (const auto& [name, value] : spec.variables) settings.push_back(name + "=" + value);
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> variables = pointers(settings);
  const Pipe output = make_pipe();
  const Pipe error = make_pipe();
  const Pipe failure = make_pipe();  // closed by a successful exec
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    const int number = become(spec, parent, output.write_end, error.write_end, const_cast<char**>(argv.data()),
                              const_cast<char**>(variables.data()));
    const ssize_t ignored = write(failure.write_end, &number, sizeof number);
    _exit(ignored < 0 ? 126 : 127);
  }
  const int fork_error = errno;
  if (pid > 0) setpgid(pid, pid);  // whoever comes first
  for (const int end : {output.write_end, error.write_end, failure.write_end}) close(end);
  int number = fork_error;
  ssize_t got = sizeof number;
  if (pid > 0) {
    while ((got = read(failure.read_end, &number, sizeof number)) < 0 && errno == EINTR) {
    }
  }
  close(failure.read_end);
  if (got == 0) return {pid, output.read_end, error.read_end};

  close(output.read_end);
  close(error.read_end);
  if (pid > 0) waitpid(pid, nullptr, 0);
  throw ConfigError(
      fmt::format("launch: '{}' cannot be started: {}; give the path of a program, or its name if "
                  "it is in PATH",
                  spec.command.front(), std::strerror(number)));
}

Guard::Guard() {
  const Pipe pipe = make_pipe();
  pid_ = fork();
  if (pid_ == 0) {
    close(pipe.write_end);
    guard(pipe.read_end);
  }
  const int number = errno;
  close(pipe.read_end);
  pipe_ = pipe.write_end;
  ESPALIER_CHECK_CONFIG(pid_ > 0, "launch: no process can be started: {}; raise the limit of processes (ulimit -u)",
                        std::strerror(number));
}

Guard::~Guard() {
  tell(0);
  close(pipe_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::tell(pid_t message) {
  while (write(pipe_, &message, sizeof message) < 0 && errno == EINTR) {
  }
}

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> children;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return children;
  while (const dirent* entry = readdir(proc)) {
    char* end = nullptr;
    const long pid = std::strtol(entry->d_name, &end, 10);
    if (*end != '\0' || pid <= 0) continue;
    std::string stat;  // a process may end while its file is read
    if (read_file(fmt::format("/proc/{}/stat", pid), stat) != 0) continue;
    const auto name_end = stat.rfind(')');  // the name may hold spaces and parentheses
    if (name_end == std::string::npos || name_end + 4 >= stat.size()) continue;
    if (std::strtol(stat.c_str() + name_end + 4, nullptr, 10) == getpid()) children.push_back(static_cast<pid_t>(pid));
  }
  closedir(proc);
  return children;
}

}  // namespace espalier::detail
