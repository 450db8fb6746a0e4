// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/comm/group.hpp"

namespace espalier {

// Checks that all members come with the same list of entries ("pipe=2", "group data [0,2]", ...). One small exchange of
// digests; only when they differ a second one of the texts. All members must call; blocks. When they differ every
// member throws the same ConfigError: subject, the first differing entry, and which ranks have which. CommError names
// the members that do not come within the group's time-out.
void agree(const Group& group, std::string_view subject, std::span<const std::string> entries);

// Every member's list of texts, in group order. All members must call; blocks. For what is small and seldom.
std::vector<std::vector<std::string>> gather_lists(const Group& group, std::span<const std::string> mine);

// Makes a trouble that only some ranks can see everybody's: when any member passes an error text, all throw the
// ConfigError of the lowest such rank. All members must call; blocks.
void agree_no_error(const Group& group, const std::optional<std::string>& error);

}  // namespace espalier
