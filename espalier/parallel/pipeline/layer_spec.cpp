// SPDX-License-Identifier: Apache-2.0
#include "espalier/parallel/pipeline/layer_spec.hpp"

#include "espalier/base/check.hpp"

namespace espalier::detail {

void throw_arity(const std::string& layer, const std::string& accepted, std::size_t given) {
  throw ConfigError(
      fmt::format("layer {}: its forward takes {} tensors, but it is given {}; make the layer before it "
                  "return as many as it takes",
                  layer, accepted.empty() ? "no list of 1 to 6" : accepted, given));
}

std::string layer_type_name(const std::string& demangled) {
  std::string name = demangled.substr(0, demangled.find('<'));
  if (const auto colon = name.rfind("::"); colon != std::string::npos) name.erase(0, colon + 2);
  if (name.ends_with("Impl")) name.erase(name.size() - 4);
  return name;
}

}  // namespace espalier::detail
