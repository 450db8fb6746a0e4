// SPDX-License-Identifier: Apache-2.0
// A graph node that holds the function and its inputs. Its backward makes the graph anew and runs it (re-entrant
// backward), so parameters accumulate their gradients there. An anchor that requires a gradient joins the node to
// the graph even when no input does. (Chen et al. 2016, "Training deep nets with sublinear memory cost")
#include "espalier/autograd/recompute.hpp"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <utility>

namespace espalier {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

class RecomputeBackward : public Node {
 public:
  TensorFunction function;
  std::vector<SavedVariable> saved_inputs;

  variable_list apply(variable_list&& output_gradients) override {
    variable_list inputs;
    for (SavedVariable& saved : saved_inputs) {
      const at::Tensor input = saved.unpack();
      inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
    }
    variable_list outputs;
    {
      const c10::AutoGradMode grad_mode(true);
      outputs = function(inputs);
    }
    variable_list roots;
    variable_list root_gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad() || !output_gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(output_gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);

    variable_list input_gradients;
    for (const at::Tensor& input : inputs) {
      input_gradients.push_back(input.requires_grad() ? input.grad() : at::Tensor());
    }
    input_gradients.emplace_back();  // the anchor's
    return input_gradients;
  }

  void release_variables() override { saved_inputs.clear(); }
  std::string name() const override { return "espalier::RecomputeBackward"; }
};

}  // namespace

std::vector<at::Tensor> recompute(const TensorFunction& function, const std::vector<at::Tensor>& inputs) {
  if (!c10::GradMode::is_enabled()) return function(inputs);
  auto node = c10::make_intrusive<RecomputeBackward>();
  node->function = function;
  for (const at::Tensor& input : inputs) node->saved_inputs.emplace_back(input, /*is_output=*/false);
  const at::Tensor anchor = at::zeros({}).set_requires_grad(true);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs, anchor));

  std::vector<at::Tensor> outputs;
  {
    const c10::NoGradGuard no_grad;
    outputs = function(inputs);
  }
  for (at::Tensor& output : outputs) {
    if (at::isFloatingType(output.scalar_type())) {
      output = output.detach();  // may be an input handed through, whose history must stay its own
      torch::autograd::set_history(output, node);
    } else {
      node->add_input_metadata(Node::undefined_input());
    }
  }
  return outputs;
}

}  // namespace espalier
