// main() of the tests with LibTorch: the allocator must be in place before the first tensor.
#include <gtest/gtest.h>

#include "penstock/memory/cpu_allocator.h"

int main(int argc, char** argv) {
  penstock::memory::install_cpu_allocator();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
