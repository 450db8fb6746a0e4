// SPDX-License-Identifier: Apache-2.0
// `espalier train`, `verify`, `verify-groups` and `bench` need tensors: this process becomes espalier-train
// with the same arguments.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/App.hpp>

#include "apps/espalier/commands.hpp"
#include "espalier/base/error.hpp"

namespace espalier::command {

std::vector<char*> argument_vector(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

void execute_sibling(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::vector<char*> argv = argument_vector(words);

  std::error_code ignored;  // no /proc: only PATH is left
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string beside = (self.parent_path() / program).string();
  if (!self.empty() && access(beside.c_str(), F_OK) == 0) {
    execv(beside.c_str(), argv.data());
    throw ConfigError(fmt::format("{}: could not be started: {}", beside, std::strerror(errno)));
  }
  execvp(program.c_str(), argv.data());
  throw ConfigError(
      fmt::format("{}: not found in {} nor in PATH ({}); it is built and installed with LibTorch "
                  "(ESPALIER_WITH_TORCH=ON)",
                  program, self.parent_path().string(), std::strerror(errno)));
}

namespace {

void add_forwarded(CLI::App& app, const std::string& name, const std::string& help) {
  CLI::App* sub = app.add_subcommand(name, help);
  sub->prefix_command();  // everything behind the name belongs to espalier-train, --help included
  sub->set_help_flag();
  sub->callback([sub, name] {
    std::vector<std::string> arguments{name};
    for (const std::string& word : sub->remaining()) arguments.push_back(word);
    execute_sibling("espalier-train", arguments);
  });
}

}  // namespace

void add_train(CLI::App& app) {
  add_forwarded(app, "train", "Train the reference GPT on text files");
  add_forwarded(app, "verify", "Compare a layout with one process: losses, gradients, norm, weights");
  add_forwarded(app, "verify-groups", "Make every group of a layout and compare what it reduces with the plan");
  add_forwarded(app, "bench", "Time collectives over one backend, or several in turn");
}

}  // namespace espalier::command
