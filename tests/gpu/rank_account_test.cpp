// Ranks that share a GPU as threads: each has its own books and its own limit.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "penstock/base/text.h"
#include "penstock/memory/gpu_account.h"
#include "penstock/memory/gpu_out_of_memory.h"
#include "penstock/memory/gpu_rank_account.h"

#include "gpu/gpu_ranks.h"

namespace penstock::memory {

namespace {

using test::run_gpu_ranks;
using test::what;

constexpr int64_t kMiB = int64_t{1} << 20;

at::Tensor bytes_on(const device::Device& device, int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(device.where).dtype(at::kByte));
}

int64_t taken_from(const device::Device& device) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device.where.index())
      .reserved_bytes[0]
      .current;
}

// Of all the device's memory, how much the allocator may take.
double share_of(const device::Device& device) {
  return c10::cuda::CUDACachingAllocator::getMemoryFraction(device.where.index());
}

class GpuRankAccounts : public test::OnGpu<> {};

}  // namespace

TEST_F(GpuRankAccounts, CountWhatTheirRankHolds) {
  run_gpu_ranks(3, [](comm::Group& group, const device::Device& device) {
    Account& account = device.account();
    const int64_t before = account.usage().current_bytes;
    EXPECT_GE(before, gpu::Gemms::kWorkspaceBytes);
    const int64_t bytes = (group.rank() + 1) * 10 * kMiB + 1;
    {
      const PeakMark mark(account);
      const at::Tensor tensor = bytes_on(device, bytes);
      EXPECT_EQ(account.usage().current_bytes, before + gpu_block_bytes(bytes));
      group.barrier(what("all to hold something"));
      EXPECT_EQ(account.usage().current_bytes, before + gpu_block_bytes(bytes));
      { const at::Tensor more = bytes_on(device, kMiB); }
      EXPECT_EQ(mark.peak_bytes(), before + gpu_block_bytes(bytes) + kMiB);
    }
    EXPECT_EQ(account.usage().current_bytes, before);
    EXPECT_GE(account.reserved_peak_bytes(), account.usage().peak_bytes);
    group.barrier(what("all to hold nothing"));
  });
}

TEST_F(GpuRankAccounts, OfAllRanksAreWhatTheAllocatorCounts) {
  run_gpu_ranks(4, [](comm::Group& group, const device::Device& device) {
    Account& whole = gpu_account(device.where.index());
    group.barrier(what("all to be open"));
    const double before = static_cast<double>(whole.usage().current_bytes);
    const double own_before = static_cast<double>(device.account().usage().current_bytes);
    group.barrier(what("all to have looked"));
    const at::Tensor tensor = bytes_on(device, (group.rank() + 1) * 3 * kMiB + 100);
    const double own = static_cast<double>(device.account().usage().current_bytes) - own_before;
    double sum = 0;
    for (const double one : group.all_gather({&own, 1}, what("what all hold"))) {
      sum += one;
    }
    EXPECT_EQ(static_cast<double>(whole.usage().current_bytes) - before, sum);
    group.barrier(what("all to have looked again"));
  });
}

// What a peer frees is still the rank's that allocated it.
TEST_F(GpuRankAccounts, AreRightWhoeverFrees) {
  at::Tensor shared;
  run_gpu_ranks(2, [&](comm::Group& group, const device::Device& device) {
    const int64_t before = device.account().usage().current_bytes;
    if (group.rank() == 0) {
      shared = bytes_on(device, kMiB);
      EXPECT_EQ(device.account().usage().current_bytes, before + kMiB);
    }
    group.barrier(what("a tensor"));
    if (group.rank() == 1) {
      shared.reset();
    }
    group.barrier(what("its end"));
    EXPECT_EQ(device.account().usage().current_bytes, before);
  });
}

TEST_F(GpuRankAccounts, RefuseWhatBreaksTheLimitOfTheirRankAlone) {
  run_gpu_ranks(2, [](comm::Group& group, const device::Device& device) {
    Account& account = device.account();
    const int64_t held = account.usage().current_bytes;
    if (group.rank() == 1) {
      account.set_limit(held + 8 * kMiB);
    }
    group.barrier(what("the limit"));
    if (group.rank() == 0) {
      const at::Tensor much = bytes_on(device, 64 * kMiB);
      EXPECT_EQ(account.usage().current_bytes, held + 64 * kMiB);
    } else {
      const at::Tensor fits = bytes_on(device, 8 * kMiB);
      try {
        refuse_over_limit([&] { bytes_on(device, 1); });
        ADD_FAILURE() << "one byte more was given";
      } catch (const LimitError& error) {
        EXPECT_EQ(error.asked_bytes(), 512);
        EXPECT_EQ(error.held_bytes(), held + 8 * kMiB);
        EXPECT_EQ(error.limit_bytes(), held + 8 * kMiB);
      }
      EXPECT_EQ(account.usage().current_bytes, held + 8 * kMiB) << "nothing was taken";
    }
    group.barrier(what("the test's end"));
    account.set_limit(0);
  });
}

// The allocator keeps freed blocks; with all limits set it does not keep more than their sum.
TEST_F(GpuRankAccounts, KeepWhatIsTakenFromTheDeviceWithinTheSumOfTheirLimits) {
  run_gpu_ranks(2, [](comm::Group& group, const device::Device& device) {
    Account& account = device.account();
    const int64_t held = account.usage().current_bytes;
    const double limit = static_cast<double>(held + 200 * kMiB);
    account.set_limit(held + 200 * kMiB);
    double sum = 0;
    for (const double one : group.all_gather({&limit, 1}, what("the limits"))) {
      sum += one;
    }
    const double whole = static_cast<double>(memory_of_device(device.where.index()).all);
    EXPECT_NEAR(share_of(device) * whole, sum, static_cast<double>(kMiB));
    for (int64_t size = 10; size <= 150; size += 20) {
      const at::Tensor tensor = bytes_on(device, size * kMiB);
      EXPECT_LE(static_cast<double>(taken_from(device)), sum);
    }
    group.barrier(what("the limits' end"));
    account.set_limit(0);
    EXPECT_EQ(share_of(device), 1.0) << "one rank without a limit, and there is no sum";
    group.barrier(what("the test's end"));
  });
}

}  // namespace penstock::memory
