// SPDX-License-Identifier: Apache-2.0
// What crosses to another host is one word for each, which every shell leaves as it is.
#include "espalier/plan/launch/hosts.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "espalier/base/check.hpp"
#include "espalier/plan/launch/launch.hpp"
#include "espalier/plan/launch/supervisor.hpp"

namespace espalier {

namespace {

using detail::ChildSpec;
using detail::Supervisor;
using Json = nlohmann::json;
using std::chrono::milliseconds;

// One end of it is given to other processes; they read its end when this process has gone.
class Lifeline {
 public:
  Lifeline() {
    ESPALIER_CHECK_CONFIG(pipe2(ends_.data(), O_CLOEXEC) == 0,
                          "launch: no pipe: {}; raise the limit of open files (ulimit -n)", std::strerror(errno));
  }
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  ~Lifeline() {
    for (const int end : ends_) close(end);
  }
  int read_end() const { return ends_[0]; }

 private:
  std::array<int, 2> ends_{-1, -1};
};

// What launch_on_hosts tells the agent of one host.
struct Share {
  std::string version = ESPALIER_VERSION;
  std::string folder;
  std::vector<std::string> command;
  Variables variables;
  Assignment first;  // of its first rank
};

// Letters that no shell takes for anything but themselves, others as %XX.
std::string encode(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == '.')
      result.push_back(letter);
    else
      result += fmt::format("%{:02x}", static_cast<unsigned char>(letter));
  }
  return result;
}

std::string decode(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      result.push_back(text[at]);
      continue;
    }
    result.push_back(static_cast<char>(std::stoi(std::string(text.substr(at + 1, 2)), nullptr, 16)));
    at += 2;
  }
  return result;
}

std::string to_words(const Share& share) {
  const Assignment& first = share.first;
  return encode(Json{
      {"version", share.version},
      {"folder", share.folder},
      {"command", share.command},
      {"variables", std::map<std::string, std::string>(share.variables.begin(), share.variables.end())},
      {"rank", first.rank},
      {"num_ranks", first.num_ranks},
      {"local_size", first.local_size},
      {"address", first.address},
      {"port", first.port},
      {"job", first.job},
      {"host",
       first.host}}.dump());
}

Share read_share(std::string_view words) {
  try {
    const Json json = Json::parse(decode(words));
    Share share{.version = json.at("version"),
                .folder = json.at("folder"),
                .command = json.at("command"),
                .variables = {},
                .first = {.rank = json.at("rank"),
                          .num_ranks = json.at("num_ranks"),
                          .local_rank = 0,
                          .local_size = json.at("local_size"),
                          .address = json.at("address"),
                          .port = json.at("port"),
                          .job = json.at("job"),
                          .host = json.at("host")}};
    for (const auto& [name, value] : json.at("variables").items()) share.variables[name] = value;
    return share;
  } catch (const std::exception& error) {
    throw ConfigError(
        fmt::format("agent: its argument is not what espalier run --hostfile writes ({}); leave it to that "
                    "command to start it",
                    error.what()));
  }
}

// The last word that reaches another host's shell must mean itself there.
void check_plain(std::string_view what, std::string_view word, std::string_view remedy) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-:@=,") ==
                                          std::string_view::npos;
  ESPALIER_CHECK_CONFIG(plain, "run: {} '{}' has letters that a remote shell could take for its own; {}", what, word,
                        remedy);
}

std::string ranks_text(std::int64_t first, std::int64_t count) {
  return count == 1 ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, first + count - 1);
}

}  // namespace

int launch_on_hosts(const HostsLaunchOptions& options) {
  ESPALIER_CHECK_CONFIG(!options.command.empty(),
                        "launch: no program; give one after the options, as in --hostfile F -- ./program");
  check_plain("the path of espalier on the hosts", options.remote_espalier, "name another with --remote-espalier");
  std::int64_t num_ranks = 0;
  for (const HostSlots& each : options.hosts) {
    check_plain("host", each.host, "correct the hostfile");
    num_ranks += each.slots;
  }
  const Lifeline lifeline;
  const std::string job = make_job_name();
  std::vector<ChildSpec> agents;
  std::vector<std::string> names;
  std::int64_t rank = 0;
  for (const HostSlots& each : options.hosts) {
    const Share share{.folder = std::filesystem::current_path(),
                      .command = options.command,
                      .variables = options.variables,
                      .first = {.rank = rank,
                                .num_ranks = num_ranks,
                                .local_rank = 0,
                                .local_size = each.slots,
                                .address = options.master_address,
                                .port = options.master_port,
                                .job = job,
                                .host = each.host}};
    std::vector<std::string> words = options.remote_shell;
    words.insert(words.end(), {each.host, options.remote_espalier, "agent", to_words(share)});
    agents.push_back(
        {.command = std::move(words), .variables = process_variables(), .standard_input = lifeline.read_end()});
    names.push_back(fmt::format("host {} ({})", each.host, ranks_text(rank, each.slots)));
    rank += each.slots;
  }
  // An agent needs its own time to end its ranks.
  const Supervisor::Policy policy{.speaker = "espalier run",
                                  .name_of = [&](std::size_t host, pid_t) { return names[host]; },
                                  .notice_time = milliseconds(200),
                                  .terminate_time = milliseconds(1500)};
  return Supervisor(policy, std::move(agents)).run();
}

int serve_share(std::string_view words) {
  const Share share = read_share(words);
  const Assignment& first = share.first;
  ESPALIER_CHECK_CONFIG(share.version == ESPALIER_VERSION,
                        "agent on host {}: espalier is {} here but {} where it was started; install "
                        "the same everywhere, or name the right one with --remote-espalier",
                        first.host, ESPALIER_VERSION, share.version);
  std::error_code failed;
  std::filesystem::current_path(share.folder, failed);
  ESPALIER_CHECK_CONFIG(!failed,
                        "agent on host {}: the folder {} cannot be entered: {}; start espalier run in "
                        "one that every host has",
                        first.host, share.folder, failed.message());
  const Variables base = with_variables(process_variables(), share.variables);
  std::vector<ChildSpec> ranks;
  for (std::int64_t local = 0; local < first.local_size; ++local) {
    Assignment assignment = first;
    assignment.rank += local;
    assignment.local_rank = local;
    ranks.push_back({.command = share.command, .variables = variables_of_rank(base, assignment)});
  }
  const Supervisor::Policy policy{.speaker = "espalier run",
                                  .name_of =
                                      [&](std::size_t local, pid_t pid) {
                                        return fmt::format("rank {} of {} (pid {} on host {})",
                                                           first.rank + static_cast<std::int64_t>(local),
                                                           first.num_ranks, pid, first.host);
                                      },
                                  .explained_codes = {detail::kCommErrorCode},  // the consequence of another's end
                                  .lifeline = STDIN_FILENO};
  return Supervisor(policy, std::move(ranks)).run();
}

}  // namespace espalier
