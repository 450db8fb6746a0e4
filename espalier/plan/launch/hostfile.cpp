// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/launch/hostfile.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "espalier/base/check.hpp"

namespace espalier {

namespace {

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<std::string_view> words;
  while (true) {
    const auto begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return words;
    const auto end = std::min(line.find_first_of(kBlanks, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
}

// "slots=4"; 0 if it is anything else.
std::int64_t read_slots(std::string_view word) {
  constexpr std::string_view kName = "slots=";
  std::int64_t slots = 0;
  if (!word.starts_with(kName)) return 0;
  const char* const end = word.data() + word.size();
  const auto [stopped, error] = std::from_chars(word.data() + kName.size(), end, slots);
  const bool right =
      error == std::errc() && stopped == end && slots >= 1 && slots <= std::numeric_limits<std::int32_t>::max();
  return right ? slots : 0;
}

std::int64_t count_slots(const std::vector<HostSlots>& hosts) {
  std::int64_t sum = 0;
  for (const HostSlots& each : hosts) sum += each.slots;
  return sum;
}

}  // namespace

std::vector<HostSlots> parse_hostfile(std::string_view text, std::string_view name) {
  std::vector<HostSlots> hosts;
  std::vector<std::int64_t> lines;  // of each host
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::string_view whole = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(whole.size() + 1, text.size()));
    const auto words = words_of(whole.substr(0, whole.find('#')));
    if (words.empty()) continue;
    const std::int64_t slots = words.size() == 2 ? read_slots(words[1]) : 0;
    ESPALIER_CHECK_CONFIG(slots > 0 && !words[0].starts_with('-'),
                          "hostfile {}, line {}: '{}'; expected a host and how many ranks it "
                          "takes, at least 1, as in: node1 slots=4",
                          name, number, fmt::join(words, " "));
    const auto known =
        std::find_if(hosts.begin(), hosts.end(), [&](const HostSlots& each) { return each.host == words[0]; });
    ESPALIER_CHECK_CONFIG(known == hosts.end(),
                          "hostfile {}, line {}: '{}' is there already, in line {}; give each host "
                          "one line with all its slots",
                          name, number, words[0], lines[static_cast<std::size_t>(known - hosts.begin())]);
    hosts.push_back({std::string(words[0]), slots});
    lines.push_back(number);
  }
  ESPALIER_CHECK_CONFIG(!hosts.empty(), "hostfile {}: it names no host; expected lines as: node1 slots=4", name);
  return hosts;
}

std::vector<HostSlots> take_slots(std::vector<HostSlots> hosts, std::int64_t num_ranks) {
  const std::int64_t available = count_slots(hosts);
  ESPALIER_CHECK_CONFIG(num_ranks >= 1 && num_ranks <= available,
                        "hostfile: {} ranks are asked for, but its {} host{} {} slots; ask for 1 to {}, or add slots",
                        num_ranks, hosts.size(), hosts.size() == 1 ? " has" : "s have", available, available);
  for (HostSlots& each : hosts) {
    each.slots = std::min(each.slots, num_ranks);
    num_ranks -= each.slots;
  }
  std::erase_if(hosts, [](const HostSlots& each) { return each.slots == 0; });
  return hosts;
}

}  // namespace espalier
