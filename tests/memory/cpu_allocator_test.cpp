#include "penstock/memory/cpu_allocator.h"

#include <thread>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace penstock::memory {

TEST(CpuAllocator, CountsLiveBytesAndTheirPeak) {
  reset_cpu_peak();
  const CpuUsage before = cpu_usage();
  {
    const at::Tensor a = at::empty({1000}, at::kFloat);
    EXPECT_EQ(cpu_usage().current_bytes - before.current_bytes, 4000);
    const at::Tensor b = at::empty({1 << 20}, at::kFloat);
    EXPECT_EQ(cpu_usage().current_bytes - before.current_bytes, 4000 + (4 << 20));
  }
  EXPECT_EQ(cpu_usage().current_bytes, before.current_bytes);
  EXPECT_EQ(cpu_usage().peak_bytes - before.current_bytes, 4000 + (4 << 20));
  reset_cpu_peak();
  EXPECT_EQ(cpu_usage().peak_bytes, before.current_bytes);
}

TEST(CpuAllocator, GivesTheSameBlockAgain) {
  const void* first = at::empty({1 << 20}, at::kFloat).data_ptr();
  EXPECT_EQ(at::empty({1 << 20}, at::kFloat).data_ptr(), first);
}

TEST(CpuAllocator, KeepsLittleMoreThanThePeak) {
  release_cpu_cache();
  EXPECT_EQ(cached_cpu_bytes(), 0);
  for (int64_t size = 1 << 20; size < (1 << 20) + 400 * 5000; size += 5000) {
    at::empty({size}, at::kFloat);  // four hundred different sizes, never two at once
  }
  EXPECT_LT(cached_cpu_bytes(), int64_t{160} << 20);
  release_cpu_cache();
}

TEST(CpuAllocator, HandlesEmptyTensorsAndAlignment) {
  EXPECT_EQ(at::empty({0}, at::kFloat).numel(), 0);
  for (const int64_t count : {1, 17, 16'384, 1 << 21}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at::empty({count}, at::kFloat).data_ptr()) % 64, 0u);
  }
}

TEST(CpuAllocator, CountsFromSeveralThreads) {
  const int64_t before = cpu_usage().current_bytes;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      for (int k = 0; k < 500; ++k) {
        at::empty({(k * 37 + i) % 5000 + (k % 7) * 20'000}, at::kFloat);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(cpu_usage().current_bytes, before);
}

}  // namespace penstock::memory
