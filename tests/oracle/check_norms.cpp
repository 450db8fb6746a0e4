// SPDX-License-Identifier: Apache-2.0
// Global norms of parameters placed in many ways, each rank holding its own part; tied gradients; flat padding. The
// functions about sequences, vocabularies and heads have no subject yet.
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <stdexcept>

#include "espalier/comm/collectives.hpp"
#include "espalier/comm/mesh.hpp"
#include "espalier/comm/run_ranks.hpp"
#include "espalier/parallel/data/average.hpp"
#include "espalier/plan/partition/flat_cut.hpp"
#include "espalier/sharding/placement.hpp"
#include "espalier/train/norm.hpp"
#include "tests/oracle/check.hpp"
#include "tests/support/oracle_tensors.hpp"

namespace espalier::oracle {
namespace {

using testing_support::oracle_number;
using testing_support::oracle_tensor;

Placement placement_of(const Json& by_axis) {
  Placement placement;
  for (const auto& [axis, kind] : by_axis.items()) {
    if (axis == "pipe") {
      placement.stages = kind.is_array() ? kind.get<std::vector<std::int64_t>>() : std::vector<std::int64_t>{0};
    } else if (kind == "shard") {
      placement.sharded_axes.push_back(axis);
    }
  }
  return placement;
}

// The norm as every rank gets it.
std::vector<double> norms_on_ranks(const Json& in) {
  const std::vector<std::string> axes = in["axes"];
  const std::vector<std::int64_t> dims = in["dims"];
  std::int64_t size = 1;
  for (const std::int64_t dim : dims) size *= dim;
  const double p = oracle_number(in["p"]);
  std::vector<double> norms(size);
  run_ranks(size, [&](World& world) {
    std::vector<AxisCoordinate> coordinates(axes.size());
    std::int64_t rest = world.rank();
    for (std::size_t i = axes.size(); i-- > 0; rest /= dims[i]) coordinates[i] = {axes[i], rest % dims[i]};
    double power = 0.0;
    for (const Json& parameter : in["params"]) {
      const Json& local = parameter["local"][world.rank()];
      if (local.is_null()) continue;
      const double mine = norm_power(oracle_tensor(local), placement_of(parameter["placement"]), coordinates, p);
      power = std::isinf(p) ? std::max(power, mine) : power + mine;
    }
    at::Tensor total = at::full({1}, power, at::kDouble);
    all_reduce_(total, world.group(), std::isinf(p) ? ReduceOp::max : ReduceOp::sum).wait();
    norms[world.rank()] = norm_from_power(total.item<double>(), p);
  });
  return norms;
}

// The expected output without what upstream's mistakes would give.
Json without_wrong(const Json& record) {
  Json expected = expected_of(record);
  for (auto it = expected.begin(); it != expected.end();) {
    it = it.key().starts_with("wrong_") ? expected.erase(it) : std::next(it);
  }
  return expected;
}

Json clip_global_norm(const Json& record) {
  const std::vector<double> norms = norms_on_ranks(record["in"]);
  for (const double norm : norms) {
    const bool same = norm == norms.front() || (std::isnan(norm) && std::isnan(norms.front()));
    if (!same) throw std::runtime_error("two ranks have different norms");
  }
  const double norm = norms.front();
  return {{"finite", std::isfinite(norm)}, {"norm", norm}, {"scale", clip_scale(norm, record["in"]["max_norm"])}};
}

// The norm of what every rank of one axis holds of one parameter.
Json norm_along(const char* axis, const Placement& placement, const std::vector<at::Tensor>& local) {
  double power = 0.0;
  for (std::size_t i = 0; i < local.size(); ++i) {
    const AxisCoordinate rank[] = {{axis, static_cast<std::int64_t>(i)}};
    power += norm_power(local[i], placement, rank, 2.0);
  }
  return {{"norm", norm_from_power(power, 2.0)}};
}

Json tied_norm(const Json& record) {
  Placement tied{.stages = {}};
  for (std::int64_t stage = 0; stage < record["in"]["stages"]; ++stage) tied.stages.push_back(stage);
  const at::Tensor gradient = oracle_tensor(record["in"]["grad_on_every_stage"]);
  return norm_along("pipe", tied, std::vector<at::Tensor>(tied.stages.size(), gradient));
}

Json expert_norm(const Json& record) {
  std::vector<at::Tensor> local;
  for (const Json& one : record["in"]["local_expert_grads"]) local.push_back(oracle_tensor(one));
  return norm_along("expert", {.sharded_axes = {"expert"}}, local);
}

// As the engine does: the sum over the stages, then the mean over data.
Json tied_gradient(const Json& record) {
  const Json& in = record["in"];
  if (in["axes"] != Json::array({"pipe", "data"})) throw std::runtime_error("expected the axes pipe and data");
  const std::int64_t pipe = in["dims"][0], data = in["dims"][1];
  Json everywhere;
  std::mutex mutex;
  run_ranks(pipe * data, [&](World& world) {
    const Mesh mesh(world, {.pipe = pipe, .data = data});
    at::Tensor gradient = oracle_tensor(in["local_grads"][static_cast<std::size_t>(world.rank())]);
    all_reduce_(gradient, mesh.group("pipe")).wait();
    average_in_buckets(gradient, mesh.group("data"), 1 << 20);
    const Json found =
        std::vector<double>(gradient.const_data_ptr<double>(), gradient.const_data_ptr<double>() + gradient.numel());
    const std::lock_guard lock(mutex);
    if (everywhere.is_null()) everywhere = found;
    if (everywhere != found) throw std::runtime_error("two ranks have different gradients");
  });
  return {{"grad_everywhere", everywhere}};
}

Json flat_padding(const Json& record) {
  const Json& in = record["in"];
  const FlatCut cut(std::vector<std::int64_t>{in["numel"]}, in["ranks"], in["alignment"]);
  Json padding = Json::object(), real = Json::array();
  for (std::int64_t rank = 0; rank < in["ranks"]; ++rank) {
    const std::int64_t elems = cut.padding_elems(rank);
    if (elems > 0) padding[std::to_string(rank)] = elems;
    real.push_back(cut.per_rank_elems() - elems);
  }
  return {{"total", cut.total_elems()}, {"per_rank", cut.per_rank_elems()}, {"padding", padding}, {"real", real}};
}

Json flat_fragments(const Json& record) {
  const std::vector<std::int64_t> sizes = record["in"]["sizes"];
  const std::int64_t ranks = record["in"]["ranks"];
  const FlatCut cut(sizes, ranks, ranks);
  Json fragments = Json::array();
  for (std::int64_t i = 0; i < std::ssize(sizes); ++i) {
    Json pieces = Json::array();
    for (const FlatCut::Fragment& piece : cut.fragments(i)) {
      pieces.push_back({{"rank", piece.rank},
                        {"param_start", piece.parameter_offset},
                        {"rank_start", piece.rank_offset},
                        {"length", piece.num_elems}});
    }
    fragments.push_back(pieces);
  }
  return {{"per_rank", cut.per_rank_elems()}, {"fragments", fragments}, {"last_padding", cut.padding_elems(ranks - 1)}};
}

Json pad_items(const Json& record) {
  const std::int64_t items = record["in"]["items"], ranks = record["in"]["ranks"];
  return {{"padding", FlatCut(std::vector<std::int64_t>{items}, ranks, ranks).total_elems() - items}};
}

}  // namespace

Checkers norms_checkers() {
  return {{"clip_global_norm", {.answer = clip_global_norm, .expected = without_wrong}},
          {"tied_norm", {.answer = tied_norm, .expected = without_wrong}},
          {"expert_norm", {.answer = expert_norm, .expected = without_wrong}},
          {"tied_gradient", {.answer = tied_gradient}},
          {"flat_padding", {.answer = flat_padding}},
          {"flat_fragments", {.answer = flat_fragments}},
          {"pad_items", {.answer = pad_items}}};
}

}  // namespace espalier::oracle
