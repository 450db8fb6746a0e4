// SPDX-License-Identifier: Apache-2.0
// adam, adamw and onebit_adam, each with as many ranks, as threads, as its record says.
#include <ATen/Functions.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "espalier/comm/run_ranks.hpp"
#include "espalier/train/optimizers/onebit_adam.hpp"
#include "espalier/train/optimizers/torch_optimizer.hpp"
#include "tests/oracle/check.hpp"
#include "tests/support/oracle_tensors.hpp"

namespace espalier::oracle {
namespace {

using testing_support::oracle_number;
using testing_support::oracle_tensor;

at::ScalarType dtype_of(const Json& in) { return in["dtype"] == "float64" ? at::kDouble : at::kFloat; }

Json doubles_of(const at::Tensor& tensor) {
  const at::Tensor same = tensor.to(at::kDouble).contiguous();
  return std::vector<double>(same.const_data_ptr<double>(), same.const_data_ptr<double>() + same.numel());
}

// One parameter, given to an optimizer.
struct Stepped {
  Stepped(const Json& in, const OptimizerFactory& factory, const Group& replicas)
      : values(oracle_tensor(in["param"], dtype_of(in))),
        lr(oracle_number(in["lr"])),
        optimizer(factory({{.values = values, .parameters = {{"w", {values}, {}}}}}, replicas)) {}

  void step(const at::Tensor& gradient) {
    values.mutable_grad() = gradient;
    optimizer->step(lr);
  }
  at::Tensor state(const char* name) {
    for (const OptimizerState& state : optimizer->state(0)) {
      if (state.name == name) return state.tensor;
    }
    return {};
  }

  at::Tensor values;
  double lr;
  std::unique_ptr<Optimizer> optimizer;
};

template <class Torch, class Options>
Json answer_adam(const Json& record) {
  const Json& in = record["in"];
  const auto factory = torch_optimizer<Torch>(Options(oracle_number(in["lr"]))
                                                  .betas({oracle_number(in["betas"][0]), oracle_number(in["betas"][1])})
                                                  .eps(oracle_number(in["eps"]))
                                                  .weight_decay(oracle_number(in["weight_decay"]))
                                                  .amsgrad(in["amsgrad"].get<bool>()));
  Stepped one(in, factory, {});
  Json params = Json::array();
  for (const Json& gradient : in["grads"]) {
    one.step(oracle_tensor(gradient, dtype_of(in)));
    params.push_back(doubles_of(one.values));
  }
  return {{"params", params},
          {"exp_avg", doubles_of(one.state("exp_avg"))},
          {"exp_avg_sq", doubles_of(one.state("exp_avg_sq"))}};
}

// DeepSpeed's first step only makes room for errors, and counts.
Json answer_onebit(const Json& record) {
  const Json& in = record["in"];
  const auto ranks = in["ranks"].get<std::size_t>();
  const auto factory = onebit_adam({.lr = oracle_number(in["lr"]),
                                    .beta1 = oracle_number(in["betas"][0]),
                                    .beta2 = oracle_number(in["betas"][1]),
                                    .eps = oracle_number(in["eps"]),
                                    .weight_decay = oracle_number(in["weight_decay"]),
                                    .freeze_step = in["freeze_step"].get<std::int64_t>() - 1,
                                    .bias_correction = false,
                                    .deepspeed_padding = true});
  std::vector<Json> all(ranks);
  run_ranks(in["ranks"], [&](World& world) {
    Json& out = all[static_cast<std::size_t>(world.rank())];
    Stepped one(in, factory, world.group());
    out = {{"phases", Json::array({"allocate"})},
           {"params", Json::array({doubles_of(one.values)})},
           {"exp_avg", Json::array({doubles_of(one.state("exp_avg"))})}};
    for (std::size_t step = 1; step < in["grads"].size(); ++step) {
      std::vector<at::Tensor> gradients;
      for (const Json& gradient : in["grads"][step]) gradients.push_back(oracle_tensor(gradient, dtype_of(in)));
      const bool averages = one.optimizer->averages();
      one.step(averages ? gradients[static_cast<std::size_t>(world.rank())] : at::stack(gradients).mean(0));
      out["phases"].push_back(averages ? "compressed" : "warmup");
      out["params"].push_back(doubles_of(one.values));
      out["exp_avg"].push_back(doubles_of(one.state("exp_avg")));
    }
    out["exp_avg_sq_last"] = doubles_of(one.state("exp_avg_sq"));
    if (ranks == 1) return;
    out["worker"] = doubles_of(one.state("worker_error"));
    out["server"] = doubles_of(one.state("server_error"));
  });
  Json joined = all[0];
  joined["worker"] = Json::array();
  for (Json& one : all) {
    if (one["params"] != joined["params"]) throw std::runtime_error("two ranks update to different values");
    joined["worker"].push_back(one["worker"]);
  }
  return joined;
}

// Errors without those of padding; the chunks of the server error joined.
Json expected_onebit(const Json& record) {
  Json out = record["out"];
  out.erase("padded");
  if (!out.contains("worker_error_last")) return out;
  const std::size_t length = record["in"]["param"].size();
  const auto cut = [&](Json list) {
    return Json(std::vector<Json>(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(length)));
  };
  for (const Json& worker : out["worker_error_last"]) out["worker"].push_back(cut(worker));
  Json server = Json::array();
  for (const Json& chunk : out["server_error_last"]) server.insert(server.end(), chunk.begin(), chunk.end());
  out["server"] = cut(server);
  out.erase("worker_error_last");
  out.erase("server_error_last");
  return out;
}

}  // namespace

Checkers optimizers_checkers() {
  return {{"adam", {.answer = answer_adam<torch::optim::Adam, torch::optim::AdamOptions>}},
          {"adamw", {.answer = answer_adam<torch::optim::AdamW, torch::optim::AdamWOptions>}},
          {"onebit_adam", {.answer = answer_onebit, .expected = expected_onebit, .float32_tolerance = 1e-4}}};
}

}  // namespace espalier::oracle
