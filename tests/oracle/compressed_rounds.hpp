// SPDX-License-Identifier: Apache-2.0
// Records of compressed_allreduce.json as Espalier answers them, for oracle_check and for the tests over other backends.
#pragma once

#include <vector>

#include "espalier/comm/world.hpp"
#include "tests/oracle/check.hpp"

namespace espalier::oracle {

// What this rank sends, keeps and gets in each of the record's rounds; all ranks must call.
Json compressed_rounds(World& world, const Json& in);
// The same of every rank, as threads over `backend`.
std::vector<Json> compressed_rounds_by_rank(const Json& in, Backend backend);
// All ranks' joined as the record has them; throws where ranks end with different results.
Json compressed_rounds_joined(const Json& record, Backend backend);

Checkers compressed_allreduce_checkers(Backend backend);

}  // namespace espalier::oracle
