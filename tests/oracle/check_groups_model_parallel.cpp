// SPDX-License-Identifier: Apache-2.0
#include "espalier/plan/groups/model_data.hpp"
#include "tests/oracle/plans.hpp"

namespace espalier::oracle {

Checkers groups_model_parallel_checkers() {
  return {{"create_model_parallel", {[](const Json& record) {
             const Json& in = record.at("in");
             const GroupPlan plan = model_data_plan(in.at("world"), in.at("mp"));
             return Json{{"effective_mp", plan.group(plan.size() - 1).ranks.size()},
                         {"n_dp", plan.size("data")},
                         {"creation", creation_of(plan)},
                         {"my_dp", own_of(plan, "data")},
                         {"my_mp", own_of(plan, "model")}};
           }}}};
}

}  // namespace espalier::oracle
