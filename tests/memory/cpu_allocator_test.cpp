#include "penstock/memory/cpu_allocator.h"

#include <thread>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace penstock::memory {

TEST(CpuAllocator, CountsLiveBytesAndTheirPeak) {
  current_account().restart_peak();
  const Usage before = usage();
  {
    const at::Tensor a = at::empty({1000}, at::kFloat);
    EXPECT_EQ(usage().current_bytes - before.current_bytes, 4000);
    const at::Tensor b = at::empty({1 << 20}, at::kFloat);
    EXPECT_EQ(usage().current_bytes - before.current_bytes, 4000 + (4 << 20));
  }
  EXPECT_EQ(usage().current_bytes, before.current_bytes);
  EXPECT_EQ(usage().peak_bytes - before.current_bytes, 4000 + (4 << 20));
  current_account().restart_peak();
  EXPECT_EQ(usage().peak_bytes, before.current_bytes);
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
  const int64_t before = usage().current_bytes;
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
  EXPECT_EQ(usage().current_bytes, before);
}

TEST(Account, ChargesTheThreadThatMakesATensorForAsLongAsItLives) {
  Account& rank = make_account();
  const int64_t before = usage(process_account()).current_bytes;
  at::Tensor tensor;
  std::thread([&] {
    const AccountScope scope(rank);
    tensor = at::empty({1000}, at::kFloat);
    EXPECT_EQ(usage().current_bytes, 4000);
  }).join();
  EXPECT_EQ(usage(rank).current_bytes, 4000);
  EXPECT_EQ(usage(process_account()).current_bytes, before);
  tensor.reset();  // by another thread, of another account
  EXPECT_EQ(usage(rank).current_bytes, 0);
  EXPECT_EQ(usage(rank).peak_bytes, 4000);
  EXPECT_EQ(usage(process_account()).current_bytes, before);
}

TEST(Account, ScopesNest) {
  Account &outer = make_account(), &inner = make_account();
  {
    const AccountScope first(outer);
    {
      const AccountScope second(inner);
      EXPECT_EQ(&current_account(), &inner);
    }
    EXPECT_EQ(&current_account(), &outer);
  }
  EXPECT_EQ(&current_account(), &process_account());
}

TEST(PeakMark, CountsFromWhereItBeganAndLeavesTheOuterPeakItsDue) {
  Account& account = make_account();
  const AccountScope scope(account);
  const at::Tensor held = at::empty({100}, at::kFloat);
  at::empty({1000}, at::kFloat);
  {
    const PeakMark outer;
    EXPECT_EQ(outer.start_bytes(), 400);
    EXPECT_EQ(outer.peak_bytes(), 400);
    at::empty({200}, at::kFloat);
    {
      const PeakMark inner;
      at::empty({50}, at::kFloat);
      EXPECT_EQ(inner.peak_bytes(), 600);
    }
    EXPECT_EQ(outer.peak_bytes(), 1200);
  }
  EXPECT_EQ(usage(account).peak_bytes, 4400);
}

TEST(Limit, RefusesTheByteThatIsTooManyAndChangesNothing) {
  Account& account = make_account();
  const AccountScope scope(account);
  set_limit(account, 4096);
  at::Tensor held = at::empty({1000}, at::kFloat);
  EXPECT_NO_THROW(at::empty({96}, at::kByte));
  try {
    at::empty({97}, at::kByte);
    FAIL() << "97 bytes over 4000 are too many";
  } catch (const LimitError& error) {
    EXPECT_EQ(error.asked_bytes(), 97);
    EXPECT_EQ(error.held_bytes(), 4000);
    EXPECT_EQ(error.limit_bytes(), 4096);
    EXPECT_EQ(error.exit_code(), ExitCode::Negative);
    EXPECT_STREQ(error.what(),
                 "an allocation of 97 bytes with 4,000 held would go over the limit of 4,096");
  }
  EXPECT_EQ(usage(account).current_bytes, 4000);
  EXPECT_EQ(usage(account).peak_bytes, 4096);
  set_limit(account, 0);
  EXPECT_NO_THROW(at::empty({1 << 20}, at::kByte));
}

TEST(Limit, HoldsOneAccountAndNoOther) {
  Account& account = make_account();
  set_limit(account, 10);
  EXPECT_NO_THROW(at::empty({1000}, at::kByte));
  const AccountScope scope(account);
  EXPECT_THROW(at::empty({1000}, at::kByte), LimitError);
}

}  // namespace penstock::memory
