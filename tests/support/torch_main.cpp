// SPDX-License-Identifier: Apache-2.0
// main() of every test program with tensors: one thread an operation, so ranks as threads do not fight for cores.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
