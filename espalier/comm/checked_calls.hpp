// SPDX-License-Identifier: Apache-2.0
// Private: collectives that are compared before they are done, for backends that do not notice by themselves that ranks
// call different ones.
#pragma once

#include <memory>
#include <string_view>

#include "espalier/comm/communicator.hpp"

namespace espalier::detail {

// `inner` with one more exchange before each collective, in which its members tell each other what they call: so
// posting waits for all of them. When they differ, all throw the same CommError, which shows two calls that do, and
// `transport` is told to give up.
std::shared_ptr<Communicator> check_calls(std::shared_ptr<Communicator> inner, std::shared_ptr<Transport> transport,
                                          const RankSet& members, std::string_view name);

}  // namespace espalier::detail
