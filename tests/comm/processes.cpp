// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/processes.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace espalier::testing_support {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::optional<RankProcess> this_rank_process() {
  const std::string body = variable("ESPALIER_TEST_BODY");
  if (body.empty()) return std::nullopt;
  return RankProcess{body, std::stol(variable("ESPALIER_TEST_RANK")), std::stol(variable("ESPALIER_TEST_SIZE")),
                     variable("ESPALIER_TEST_FOLDER")};
}

Outcome run_processes(const std::string& body, std::int64_t size, std::chrono::milliseconds time_limit) {
  Outcome outcome;
  outcome.shared = std::make_unique<TemporaryFolder>();
  for (std::int64_t rank = 0; rank < size; ++rank) {
    std::vector<std::string> variables;
    for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
    variables.push_back("ESPALIER_TEST_BODY=" + body);
    variables.push_back("ESPALIER_TEST_RANK=" + std::to_string(rank));
    variables.push_back("ESPALIER_TEST_SIZE=" + std::to_string(size));
    variables.push_back("ESPALIER_TEST_FOLDER=" + outcome.shared->path());
    std::vector<char*> environment;
    for (std::string& entry : variables) environment.push_back(entry.data());
    environment.push_back(nullptr);
    const std::string output = outcome.shared->file("output." + std::to_string(rank));
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
    char program[] = "/proc/self/exe";
    char* arguments[] = {program, nullptr};
    pid_t pid = 0;
    const int failed = ::posix_spawn(&pid, program, &actions, nullptr, arguments, environment.data());
    ::posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) throw std::runtime_error("posix_spawn failed");
    outcome.pids.push_back(pid);
  }
  const auto deadline = std::chrono::steady_clock::now() + time_limit;
  for (const pid_t pid : outcome.pids) {
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, &status, 0);
        status = -1;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    outcome.statuses.push_back(status);
  }
  for (std::int64_t rank = 0; rank < size; ++rank) {
    std::ostringstream text;
    text << std::ifstream(outcome.shared->file("output." + std::to_string(rank))).rdbuf();
    outcome.outputs.push_back(text.str());
  }
  return outcome;
}

}  // namespace espalier::testing_support
