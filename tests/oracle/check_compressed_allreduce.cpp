// SPDX-License-Identifier: Apache-2.0
// With as many ranks, as threads over host, as a record says.
#include "tests/oracle/compressed_rounds.hpp"

namespace espalier::oracle {

Checkers compressed_allreduce_checkers() { return compressed_allreduce_checkers(Backend::host); }

}  // namespace espalier::oracle
