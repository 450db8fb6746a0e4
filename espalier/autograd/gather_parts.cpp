// SPDX-License-Identifier: Apache-2.0
#include "espalier/autograd/gather_parts.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "espalier/comm/collectives.hpp"

namespace espalier {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

class GatherPartsBackward : public Node {
 public:
  std::vector<std::int64_t> cuts;
  at::TensorOptions options;
  Group group;

  variable_list apply(variable_list&& gradients) override {
    const at::NoGradGuard no_grad;
    std::int64_t longest = 0;
    for (std::int64_t p = 0; p < group.size(); ++p) longest = std::max(longest, elems(p));
    const at::Tensor rows = at::zeros({group.size(), longest}, options);
    for (std::int64_t p = 0; p < group.size() && gradients[0].defined(); ++p) {
      rows.select(0, p)
          .narrow(0, 0, elems(p))
          .copy_(gradients[0].narrow(0, cuts[static_cast<std::size_t>(p)], elems(p)));
    }
    at::Tensor mine = at::empty({longest}, options);
    reduce_scatter_into(mine, rows, group).wait();
    return {mine.narrow(0, 0, elems(group.rank()))};
  }

  std::string name() const override { return "espalier::GatherPartsBackward"; }

 private:
  std::int64_t elems(std::int64_t part) const {
    const auto p = static_cast<std::size_t>(part);
    return cuts[p + 1] - cuts[p];
  }
};

}  // namespace

at::Tensor gather_parts(const at::Tensor& part, std::span<const std::int64_t> cuts, const Group& group) {
  at::Tensor whole = at::empty({cuts.back()}, part.options());
  std::vector<at::Tensor> parts;
  for (std::size_t p = 0; p + 1 < cuts.size(); ++p) parts.push_back(whole.narrow(0, cuts[p], cuts[p + 1] - cuts[p]));
  all_gather_v(parts, part, group).wait();
  if (!c10::GradMode::is_enabled() || !part.requires_grad()) return whole;
  auto node = c10::make_intrusive<GatherPartsBackward>();
  node->cuts.assign(cuts.begin(), cuts.end());
  node->options = part.options();
  node->group = group;
  node->set_next_edges(torch::autograd::collect_next_edges(part));
  torch::autograd::set_history(whole, node);
  return whole;
}

}  // namespace espalier
