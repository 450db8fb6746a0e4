// SPDX-License-Identifier: Apache-2.0
// Private.
#pragma once

#include <string>

namespace espalier {

// This host's name, for people: ESPALIER_HOST, if that is set, else its own, cut after 255 bytes.
std::string host_name();

}  // namespace espalier
