// SPDX-License-Identifier: Apache-2.0
// oracle_check [--allow-unknown] [--refusals] FILE...: compares Espalier with the records of oracle
// files.
#include <array>
#include <fstream>
#include <iostream>

#include "tests/oracle/check.hpp"
#include "tests/oracle/topics.hpp"

namespace espalier::oracle {
namespace {

struct Options {
  bool allow_unknown = false;
  bool show_refusals = false;
  std::vector<std::string> files;
};

using Counts = std::array<int, 4>;  // by Verdict

void check_file(const std::string& path, const Options& options, Counts& counts) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error(path + ": cannot be read");
  const Json file = Json::parse(stream);
  if (file.at("schema") != 1) throw std::runtime_error(path + ": schema is not 1");
  const std::string topic = file.at("topic");
  Checkers checkers;
  for (const Topic& known : topics()) {
    if (known.name == topic) checkers = known.checkers();
  }
  int index = 0;
  for (const Json& record : file.at("records")) {
    const Outcome outcome = check_record(record, checkers);
    ++counts[static_cast<std::size_t>(outcome.verdict)];
    const bool wrong =
        outcome.verdict == Verdict::differed || (outcome.verdict == Verdict::unknown && !options.allow_unknown);
    if (wrong || (outcome.verdict == Verdict::refused && options.show_refusals)) {
      std::cout << topic << " " << index << " " << record.at("function").get<std::string>() << " "
                << record.at("in").dump().substr(0, 200) << ": " << outcome.text << "\n";
    }
    ++index;
  }
}

int run(const Options& options) {
  Counts counts{};
  for (const std::string& path : options.files) check_file(path, options, counts);
  const auto [passed, refused, differed, unknown] = counts;
  std::cout << passed << " passed, " << refused << " refused, " << differed << " differed, " << unknown << " unknown\n";
  return differed == 0 && (unknown == 0 || options.allow_unknown) ? 0 : 1;
}

}  // namespace
}  // namespace espalier::oracle

int main(int argc, char** argv) {
  espalier::oracle::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--allow-unknown") {
      options.allow_unknown = true;
    } else if (argument == "--refusals") {
      options.show_refusals = true;
    } else {
      options.files.push_back(argument);
    }
  }
  if (options.files.empty()) {
    std::cerr << "usage: oracle_check [--allow-unknown] [--refusals] FILE...\n";
    return 2;
  }
  try {
    return espalier::oracle::run(options);
  } catch (const std::exception& error) {
    std::cerr << "oracle_check: " << error.what() << "\n";
    return 2;
  }
}
