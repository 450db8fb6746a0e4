// SPDX-License-Identifier: Apache-2.0
// `espalier doctor`: what this command was built with, what it finds on this machine, and which
// rank it would be here.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/espalier/commands.hpp"
#include "espalier/base/error.hpp"
#include "espalier/base/host_name.hpp"
#include "espalier/base/usable_cores.hpp"
#include "espalier/plan/launch/capabilities.hpp"
#include "espalier/plan/launch/environment.hpp"

namespace espalier::command {

namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> backends() {
  if (std::string_view(ESPALIER_TORCH_VERSION).empty()) return {};
  std::vector<std::string> names{"host", "gloo", "hierarchical"};
  if (ESPALIER_WITH_MPI == 1) names.push_back("mpi");
  return names;
}

Json built_in() {
  return {{"version", ESPALIER_VERSION},
          {"compiler", __VERSION__},
          {"libtorch", ESPALIER_TORCH_VERSION},  // empty: built without
          {"backends", backends()}};
}

// What each backend that is built in does by itself, and what happens where it does not.
Json capabilities() {
  Json json = Json::object();
  for (const CapabilityRow& row : capability_rows()) {
    Json by_backend = Json::object();
    for (const std::string& backend : backends())
      by_backend[backend] = capabilities_of(backend).*row.has ? "yes" : row.otherwise;
    json[std::string(row.what)] = by_backend;
  }
  return json;
}

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::int64_t memory_mib(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  std::int64_t kib = 0;
  while (file >> name >> kib && std::getline(file, unit))
    if (name == field + ":") return kib / 1024;
  return 0;
}

// "yes", or why not.
std::string works(long descriptor) {
  const int number = errno;
  if (descriptor < 0) return std::strerror(number);
  close(static_cast<int>(descriptor));
  return "yes";
}

Json host_facts() {
  std::error_code ignored;
  return {{"host", host_name()},
          {"cores", usable_cores()},
          {"memory_mib", memory_mib("MemTotal")},
          {"memory_available_mib", memory_mib("MemAvailable")},
          {"kernel", first_line_of("/proc/sys/kernel/osrelease")},
          {"boot_id", first_line_of("/proc/sys/kernel/random/boot_id")},
          {"pid_namespace", std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string()},
          {"memfd", works(memfd_create("espalier-doctor", MFD_CLOEXEC))},  // shared memory of backend host
          {"pidfd", works(syscall(SYS_pidfd_open, getpid(), 0))}};         // it notices dead ranks with
}

// Beside this program or in PATH; empty: nowhere.
std::string find_program(const std::string& name) {
  std::error_code ignored;
  std::string folders = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
  if (const char* path = std::getenv("PATH")) folders += std::string(":") + path;
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string candidate = folders.substr(begin, end - begin) + "/" + name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
    begin = end + 1;
  }
  return "";
}

Json found() { return {{"espalier-train", find_program("espalier-train")}}; }

Json fact(const FoundNumber& number) { return {{"value", number.value}, {"from", number.variable}}; }
Json fact(const FoundText& text) { return {{"value", text.value}, {"from", text.variable}}; }
template <typename Found>
Json fact(const std::optional<Found>& found) {
  return found ? fact(*found) : Json(nullptr);
}

Json rank_environment(const Variables& variables) {
  Json json{{"variables", rank_variables(variables)}};
  try {
    const RankEnvironment found = discover_ranks(variables);
    json["launcher"] = to_string(found.launcher);
    json["rank"] = fact(found.rank);
    json["world_size"] = fact(found.world_size);
    json["local_rank"] = fact(found.local_rank);
    json["local_world_size"] = fact(found.local_world_size);
    json["master_address"] = fact(found.master_address);
    json["master_port"] = fact(found.master_port);
    json["job"] = fact(found.job);
    const BackendChoice choice = expected_backend(found, variables, ESPALIER_WITH_MPI == 1);
    json["backend"] = {{"value", choice.backend}, {"why", choice.why}};
    json["store"] = found.world_size.value == 1 ? "none"
                    : found.agent_serves_store  ? "served by torchrun's agent"
                                                : "served by rank 0";
  } catch (const ConfigError& error) {
    json["error"] = error.what();
  }
  return json;
}

std::string shown(const Json& value) {
  if (value.is_null()) return "unknown";
  if (value.contains("why")) return fmt::format("{}  ({})", shown(value["value"]), shown(value["why"]));
  if (value.is_object()) {
    const std::string from = value["from"];
    return fmt::format("{}{}", shown(value["value"]), from.empty() ? "" : fmt::format("  (from {})", from));
  }
  if (value.is_string()) return value.get<std::string>().empty() ? "none" : value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& one : value) text += (text.empty() ? "" : ", ") + shown(one);
  return text.empty() ? "none" : text;
}

void print_capabilities(const Json& table) {
  fmt::print("capabilities\n");
  for (const auto& [what, by_backend] : table.items()) {
    std::map<std::string, std::vector<std::string>> backends;  // by what they do
    for (const auto& [backend, does] : by_backend.items()) backends[does].push_back(backend);
    const bool all = backends["yes"].size() == by_backend.size();
    std::string text = all ? "yes" : fmt::format("{}: yes", fmt::join(backends["yes"], ", "));
    backends.erase("yes");
    for (const auto& [does, names] : backends) text += fmt::format("; {}: {}", fmt::join(names, ", "), does);
    fmt::print("  {:<22}{}\n", what, text);
  }
}

void print(const Json& report) {
  for (const auto& [section, facts] : report.items()) {
    if (section == "capabilities") {
      print_capabilities(facts);
      continue;
    }
    fmt::print("{}\n", section);
    for (const auto& [name, value] : facts.items()) fmt::print("  {:<22}{}\n", name, shown(value));
  }
}

}  // namespace

void add_doctor(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("doctor", "What was built in, what is found here, which rank this would be");
  const auto as_json = std::make_shared<bool>(false);
  sub->add_flag("--json", *as_json, "One JSON object instead of text");
  sub->callback([as_json] {
    const Json report{{"built in", built_in()},
                      {"capabilities", capabilities()},
                      {"found", found()},
                      {"host", host_facts()},
                      {"ranks", rank_environment(process_variables())}};
    if (*as_json) {
      fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
      print(report);
    }
    std::fflush(stdout);
    if (report["ranks"].contains("error")) throw ConfigError(report["ranks"]["error"].get<std::string>());
  });
}

}  // namespace espalier::command
