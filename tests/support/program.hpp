// SPDX-License-Identifier: Apache-2.0
// A program under test, run as its own process and never longer than the test allows.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace espalier::testing_support {

using std::chrono::milliseconds;
using TestClock = std::chrono::steady_clock;

inline double seconds_since(TestClock::time_point start) {
  return std::chrono::duration<double>(TestClock::now() - start).count();
}

// Whether `condition` became true within `limit`.
inline bool eventually(const std::function<bool()>& condition, milliseconds limit = milliseconds(5000)) {
  const auto start = TestClock::now();
  while (!condition()) {
    if (TestClock::now() - start > limit) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

// How many processes have `marker` in their command line.
inline int count_processes(const std::string& marker) {
  int count = 0;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = readdir(proc)) {
    std::ifstream file("/proc/" + std::string(entry->d_name) + "/cmdline");
    std::ostringstream line;
    line << file.rdbuf();  // nothing where the process ends meanwhile
    if (line.str().find(marker) != std::string::npos) ++count;
  }
  closedir(proc);
  return count;
}

class Program {
 public:
  // `settings` are added to this process's environment; an empty value removes the variable.
  explicit Program(std::vector<std::string> words, const std::map<std::string, std::string>& settings = {},
                   const std::string& input = "")
      : input_(memory(input)), output_(memory("")), error_(memory("")) {
    std::map<std::string, std::string> variables;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      variables[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
    std::vector<std::string> lines;
    for (const auto& [name, value] : settings) variables[name] = value;
    for (const auto& [name, value] : variables)
      if (!value.empty()) lines.push_back(name + "=" + value);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input_, 0);
    posix_spawn_file_actions_adddup2(&actions, output_, 1);
    posix_spawn_file_actions_adddup2(&actions, error_, 2);
    const int trouble =
        posix_spawnp(&pid_, words.front().c_str(), &actions, nullptr, pointers(words).data(), pointers(lines).data());
    posix_spawn_file_actions_destroy(&actions);
    if (trouble != 0) throw std::runtime_error("cannot start " + words.front());
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (running()) {
      ::kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (const int descriptor : {input_, output_, error_}) ::close(descriptor);
  }

  pid_t pid() const { return pid_; }
  void send(int signal) const { kill(pid_, signal); }
  std::string output() const { return text(output_); }
  std::string error() const { return text(error_); }

  // Waits for the end: the exit code, or 128 + n after signal n. Throws (and the destructor kills)
  // beyond `limit`.
  int wait(milliseconds limit = milliseconds(20000)) {
    if (!eventually([&] { return !running(); }, limit))
      throw std::runtime_error("the program did not end in time; so far it said: " + output() + error());
    return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> result;
    for (std::string& word : words) result.push_back(word.data());
    result.push_back(nullptr);
    return result;
  }
  static int memory(const std::string& content) {
    const int descriptor = memfd_create("test", MFD_CLOEXEC);
    if (write(descriptor, content.data(), content.size()) < 0) throw std::runtime_error("no memory file");
    lseek(descriptor, 0, SEEK_SET);
    return descriptor;
  }
  static std::string text(int descriptor) {
    // The writers share this offset, so it is also the length.
    std::string result(static_cast<std::size_t>(lseek(descriptor, 0, SEEK_CUR)), '\0');
    const ssize_t got = pread(descriptor, result.data(), result.size(), 0);
    result.resize(static_cast<std::size_t>(got < 0 ? 0 : got));
    return result;
  }
  bool running() {
    if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
    return !ended_;
  }

  int input_, output_, error_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace espalier::testing_support
