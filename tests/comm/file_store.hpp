// SPDX-License-Identifier: Apache-2.0
// A Store in a folder, for tests that start processes.
#pragma once

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "espalier/base/error.hpp"
#include "espalier/comm/store.hpp"

namespace espalier::testing_support {

class FileStore final : public detail::Store {
 public:
  explicit FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void set(std::string_view key, std::string_view value) override {
    const auto unfinished = folder_ / (file_of(key) + "." + std::to_string(::getpid()));
    std::ofstream(unfinished, std::ios::binary) << value;
    std::filesystem::rename(unfinished, folder_ / file_of(key));
  }

  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!std::filesystem::exists(folder_ / file_of(key))) {
      if (std::chrono::steady_clock::now() > deadline) throw CommError("store: no '" + std::string(key) + "' in time");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ostringstream text;
    text << std::ifstream(folder_ / file_of(key), std::ios::binary).rdbuf();
    return text.str();
  }

 private:
  static std::string file_of(std::string_view key) {
    std::string name(key);
    for (char& letter : name) letter = letter == '/' ? '_' : letter;
    return name;
  }

  std::filesystem::path folder_;
};

}  // namespace espalier::testing_support
