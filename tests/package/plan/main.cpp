// SPDX-License-Identifier: Apache-2.0
// The README's first program: which ranks share gradients with rank 5, when 8 ranks are 2 pipeline stages?
#include <iostream>

#include "espalier/plan/layout/layout.hpp"

int main() {
  const espalier::Layout layout(espalier::Layout::parse("pipe=2,data=rest"), 8);
  std::cout << layout.group("data", 5).to_string() << '\n';
}
