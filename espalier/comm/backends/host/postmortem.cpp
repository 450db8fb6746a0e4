// SPDX-License-Identifier: Apache-2.0
#include "espalier/comm/backends/host/postmortem.hpp"

#include <array>
#include <ctime>
#include <exception>
#include <nlohmann/json.hpp>

#include "espalier/base/atomic_file.hpp"
#include "espalier/base/host_name.hpp"

namespace espalier::detail::host {
namespace {

using Json = nlohmann::ordered_json;

std::string_view state_name(RankStatus status, bool waits) {
  switch (status) {
    case RankStatus::absent:
      return "absent";
    case RankStatus::attached:
      return waits ? "waiting" : "running";
    case RankStatus::closing:
      return "closing";
    case RankStatus::closed:
      return "left";
    case RankStatus::failed:
      return "gave up";
    case RankStatus::died:
      return "died";
  }
  return "?";
}

std::int64_t ms_since(std::int64_t then_ns, std::int64_t now_ns) { return (now_ns - then_ns) / 1'000'000; }

Json to_json(const PastCall& call, std::int64_t now_ns) {
  Json json{{"call", to_string(call.call)},
            {"number", call.sequence},
            {"group", call.group.view()},
            {"ms_ago", ms_since(call.posted_ns, now_ns)},
            {"finished", call.finished != 0}};
  if (call.peer >= 0) json["peer"] = call.peer;
  if (!call.during.view().empty()) json["during"] = call.during.view();
  return json;
}

Json to_json(const RankSlot& slot, std::int64_t rank, const RankNames& names, std::int64_t now_ns) {
  const PastWait wait = slot.history.wait();
  const auto status = static_cast<RankStatus>(slot.status.load());
  Json json{
      {"rank", names.world_rank(rank)}, {"pid", slot.pid.load()}, {"state", state_name(status, wait.since_ns != 0)}};
  if (status == RankStatus::failed) json["error"] = slot.failure.data();
  if (wait.since_ns != 0) {
    json["waits_for"] = Json::array();
    for (const std::int32_t awaited : wait.ranks) json["waits_for"].push_back(names.world_rank(awaited));
    json["waits_ms"] = ms_since(wait.since_ns, now_ns);
  }
  Json calls = Json::array();
  for (const PastCall& call : slot.history.calls()) calls.push_back(to_json(call, now_ns));
  json["calls"] = std::move(calls);
  return json;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace

std::string write_postmortem(const Segment& segment, const RankNames& names, std::int64_t writer,
                             const std::string& path, std::string_view reason) {
  const std::int64_t now_ns = coarse_now_ns();
  Json file{{"espalier_postmortem", 1},
            {"time", utc_now()},
            {"host", names.host.empty() ? host_name() : names.host},
            {"reason", reason},
            {"writer", names.world_rank(writer)},
            {"ranks", Json::array()}};
  for (std::int64_t rank = 0; rank < segment.num_ranks(); ++rank) {
    file["ranks"].push_back(to_json(segment.slot(rank), rank, names, now_ns));
  }
  try {
    write_file_atomically(path, file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace espalier::detail::host
