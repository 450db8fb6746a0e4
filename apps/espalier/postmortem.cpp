// SPDX-License-Identifier: Apache-2.0
// `espalier postmortem FILE...`: what the ranks of a world were doing when it failed, and who waited for whom, from the
// file that one of them wrote.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

#include "apps/espalier/commands.hpp"
#include "espalier/base/check.hpp"
#include "espalier/base/read_file.hpp"

namespace espalier::command {
namespace {

using Json = nlohmann::json;

struct Rank {
  std::int64_t pid = 0;
  std::string state;
  std::string error;  // of a rank that gave up
  std::vector<std::int64_t> waits_for;
  std::int64_t waits_ms = 0;
  std::vector<std::string> calls;  // oldest first, as printed
  std::string last = "nothing";

  // A rank may have died, or given up, in a wait.
  bool waits() const { return state == "waiting"; }
};

struct Postmortem {
  std::string time, host, reason;
  std::map<std::int64_t, Rank> ranks;
};

std::string describe(const Json& call) {
  std::string text = fmt::format("{} #{} of group '{}'", call.at("call").get<std::string>(),
                                 call.at("number").get<std::int64_t>(), call.at("group").get<std::string>());
  if (call.contains("peer")) text += fmt::format(" with rank {}", call["peer"].get<std::int64_t>());
  if (call.contains("during")) text += fmt::format(", in {}", call["during"].get<std::string>());
  return text;
}

Postmortem read(const std::string& path) {
  std::string content;
  const int error = read_file(path, content);
  ESPALIER_CHECK_CONFIG(
      error == 0, "postmortem: {} cannot be read: {}; expected a file that a failed world wrote (ESPALIER_POSTMORTEM)",
      path, std::system_category().message(error));
  Postmortem result;
  try {
    const Json json = Json::parse(content, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) throw std::invalid_argument("it is not JSON");
    if (json.at("espalier_postmortem") != 1) throw std::invalid_argument("its format is not version 1");
    result.time = json.at("time");
    result.host = json.at("host");
    result.reason = json.at("reason");
    for (const Json& one : json.at("ranks")) {
      Rank& rank = result.ranks[one.at("rank")];
      rank.pid = one.at("pid");
      rank.state = one.at("state");
      rank.error = one.value("error", "");
      rank.waits_for = one.value("waits_for", std::vector<std::int64_t>{});
      rank.waits_ms = one.value("waits_ms", std::int64_t{0});
      for (const Json& call : one.at("calls")) {
        rank.last = describe(call);
        rank.calls.push_back(fmt::format("{:>8} ms ago  {}  {}", call.at("ms_ago").get<std::int64_t>(),
                                         call.at("finished").get<bool>() ? "done      " : "unfinished", rank.last));
      }
    }
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("postmortem: {} is not a post-mortem of espalier: {}", path, error.what()));
  }
  return result;
}

std::string state_of(const Rank& rank) {
  if (rank.waits_for.empty()) return rank.state;
  return fmt::format("{} {:.1f} s for {}", rank.waits() ? "waiting" : rank.state + ", had waited",
                     static_cast<double>(rank.waits_ms) * 1e-3, fmt::join(rank.waits_for, ","));
}

// Who is waited for and waits for nobody: there the others' waiting ends.
std::vector<std::string> ends_of_waiting(const Postmortem& postmortem) {
  std::map<std::int64_t, std::vector<std::int64_t>> waiters;  // whom -> who
  for (const auto& [number, rank] : postmortem.ranks) {
    if (!rank.waits()) continue;
    for (const std::int64_t awaited : rank.waits_for) waiters[awaited].push_back(number);
  }
  std::vector<std::string> lines;
  for (const auto& [awaited, by] : waiters) {
    const auto found = postmortem.ranks.find(awaited);
    if (found == postmortem.ranks.end() || found->second.waits()) continue;
    const Rank& rank = found->second;
    lines.push_back(fmt::format("rank {} ({}) is waited for by rank{} {} and waits for nobody; its last call is {}",
                                awaited, rank.state, by.size() == 1 ? "" : "s", fmt::join(by, ","), rank.last));
  }
  if (lines.empty() && !waiters.empty())
    lines.push_back("every rank that is waited for waits itself: they wait in a circle");
  return lines;
}

void print(const std::string& path, const Postmortem& postmortem, bool all_calls) {
  fmt::print("{}: {} ranks on {}, {}\n{}\n\n", path, postmortem.ranks.size(), postmortem.host, postmortem.time,
             postmortem.reason);
  std::size_t width = 5;
  for (const auto& [number, rank] : postmortem.ranks) width = std::max(width, state_of(rank).size());
  fmt::print("rank  pid      {:<{}}  last call\n", "state", width);
  for (const auto& [number, rank] : postmortem.ranks) {
    fmt::print("{:<4}  {:<7}  {:<{}}  {}\n", number, rank.pid, state_of(rank), width, rank.last);
    if (!rank.error.empty()) fmt::print("      {}\n", rank.error);
    if (all_calls) fmt::print("{}{}", fmt::join(rank.calls, "\n"), rank.calls.empty() ? "" : "\n");
  }
  const std::vector<std::string> ends = ends_of_waiting(postmortem);
  fmt::print("{}{}{}", ends.empty() ? "" : "\n", fmt::join(ends, "\n"), ends.empty() ? "" : "\n");
}

}  // namespace

void add_postmortem(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("postmortem", "Show what the ranks of a world were doing when it failed");
  sub->footer(
      "A world over shared memory writes the file when a rank dies, a deadline passes or ranks call different operations: "
      "espalier train into --out, other programs where espalier run --postmortem or ESPALIER_POSTMORTEM says.");
  const auto paths = std::make_shared<std::vector<std::string>>();
  const auto all_calls = std::make_shared<bool>(false);
  sub->add_option("FILE", *paths, "Post-mortem files")->required();
  sub->add_flag("--calls", *all_calls, "Each rank's last 64 calls too");
  sub->callback([paths, all_calls] {
    for (std::size_t i = 0; i < paths->size(); ++i) {
      if (i > 0) fmt::print("\n");
      print((*paths)[i], read((*paths)[i]), *all_calls);
    }
  });
}

}  // namespace espalier::command
