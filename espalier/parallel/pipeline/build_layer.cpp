// SPDX-License-Identifier: Apache-2.0
#include "espalier/parallel/pipeline/build_layer.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include "espalier/base/check.hpp"

namespace espalier::detail {
namespace {

// Puts the default generator back as it was, also when a constructor throws.
class GeneratorGuard {
 public:
  GeneratorGuard() : generator_(at::detail::getDefaultCPUGenerator()), state_(get_state()) {}
  ~GeneratorGuard() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  void seed(std::uint64_t seed) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_current_seed(seed);
  }

 private:
  at::Tensor get_state() {
    const std::lock_guard lock(generator_.mutex());
    return generator_.get_state();
  }

  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace

std::shared_ptr<torch::nn::Module> build_layer(const LayerSpec& layer, std::uint64_t seed,
                                               const std::function<void(std::uint64_t)>& seed_function) {
  static std::mutex one_at_a_time;  // guards LibTorch's generator, which is the process's
  const std::lock_guard lock(one_at_a_time);
  GeneratorGuard guard;
  guard.seed(seed);
  if (seed_function) seed_function(seed);
  auto module = layer.build();
  ESPALIER_CHECK_CONFIG(module != nullptr, "layer {}: its factory returned no module", layer.type_name);
  return module;
}

}  // namespace espalier::detail
