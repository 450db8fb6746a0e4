// SPDX-License-Identifier: Apache-2.0
// Private.
#pragma once

#include <string>

namespace espalier {

// This host's name, for people; cut after 255 bytes.
std::string host_name();

}  // namespace espalier
