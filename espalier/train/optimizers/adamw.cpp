// SPDX-License-Identifier: Apache-2.0
#include "espalier/base/check.hpp"
#include "espalier/train/optimizers/torch_optimizer.hpp"

#include <cmath>

namespace espalier {

OptimizerFactory adamw(const AdamWOptions& options) {
  ESPALIER_CHECK_CONFIG(std::isfinite(options.lr) && options.lr >= 0.0,
                        "adamw: lr is {}; expected a finite number >= 0", options.lr);
  ESPALIER_CHECK_CONFIG(options.beta1 >= 0.0 && options.beta1 < 1.0 && options.beta2 >= 0.0 && options.beta2 < 1.0,
                        "adamw: betas are {} and {}; expected numbers from 0 to below 1", options.beta1, options.beta2);
  return torch_optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(options.lr)
                                                  .betas({options.beta1, options.beta2})
                                                  .eps(options.eps)
                                                  .weight_decay(options.weight_decay));
}

}  // namespace espalier
