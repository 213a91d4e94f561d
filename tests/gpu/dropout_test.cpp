#include "penstock/gpu/dropout.h"

#include <bit>
#include <string>

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

class GpuDropout : public GpuTest {};

constexpr PhiloxKey kKey{0x12345678, 0x9ABCDEF0};

// Bits, for -0 differs from 0.
std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) {
    bits.push_back(std::bit_cast<uint32_t>(value));
  }
  return bits;
}

// The CPU kernel on float32, rounded after. `x` is exact in `type`, so for bfloat16 this is what
// the CPU's own bfloat16 kernel does.
std::vector<float> dropped_by_cpu(Type type,
                                  const kernels::DropoutMask& mask,
                                  std::vector<float> x,
                                  int64_t per_sample) {
  kernels::DropoutMask of_sample = mask;
  for (size_t first = 0; first < x.size(); first += static_cast<size_t>(per_sample)) {
    kernels::apply_dropout(of_sample, 0, per_sample, x.data() + first);
    ++of_sample.sample;
  }
  return rounded(type, x);
}

void expect_cpu_mask(Type type,
                     int64_t samples,
                     int64_t per_sample,
                     const kernels::DropoutMask& mask,
                     Random& random) {
  SCOPED_TRACE(std::string(name_of(type)) + ", " + std::to_string(samples) + " x " +
               std::to_string(per_sample));
  const std::vector<float> x = rounded(type, random.normal(samples * per_sample));
  const std::vector<uint32_t> expected = bits_of(dropped_by_cpu(type, mask, x, per_sample));
  for (const int64_t offset : {0, 1}) {  // 1: no vector is aligned
    const DeviceBuffer in(type, x, offset), out(type, samples * per_sample, offset);
    Dropout work{.type = type,
                 .x = in.data(),
                 .out = out.data(),
                 .samples = samples,
                 .per_sample = per_sample,
                 .mask = mask};
    apply_dropout(work, nullptr);
    EXPECT_TRUE(bits_of(out.download()) == expected) << "offset " << offset;
    EXPECT_TRUE(out.is_guard_intact());
    work.out = in.data();
    apply_dropout(work, nullptr);
    EXPECT_TRUE(bits_of(in.download()) == expected) << "in place, offset " << offset;
    EXPECT_TRUE(in.is_guard_intact());
  }
}

TEST_F(GpuDropout, DropsWhatTheCpuDrops) {
  Random random;
  // The last one's sample numbers carry into the high word.
  const kernels::DropoutMask masks[] = {
      kernels::dropout_mask({0, 0}, 0, 0, 0.5),
      kernels::dropout_mask(kKey, 3, 17, 0.1),
      kernels::dropout_mask(kKey, 0xFFFF, 0x76543210FFFFFFFE, 0.9)};
  for (const Type type : kAllTypes) {
    for (const kernels::DropoutMask& mask : masks) {
      for (const int64_t per_sample : {1, 2, 15, 16, 17, 63, 64, 65, 100, 768, 4116, 50001}) {
        expect_cpu_mask(type, 3, per_sample, mask, random);
      }
    }
  }
}

TEST_F(GpuDropout, TakesMoreSamplesThanAGridHasRows) {
  Random random;
  expect_cpu_mask(Type::BFloat16, 70001, 8, kernels::dropout_mask(kKey, 1, 5, 0.3), random);
}

TEST_F(GpuDropout, MatchesTheBfloat16KernelOfTheCpu) {
  Random random;
  constexpr int64_t count = 1000;
  const kernels::DropoutMask mask = kernels::dropout_mask(kKey, 2, 9, 0.2);
  const std::vector<float> x = rounded(Type::BFloat16, random.normal(count));
  std::vector<kernels::Bf16> expected;
  for (const float value : x) {
    expected.push_back(kernels::from_float<kernels::Bf16>(value));
  }
  kernels::apply_dropout(mask, 0, count, expected.data());
  const DeviceBuffer values(Type::BFloat16, x);
  apply_dropout({.type = Type::BFloat16,
                 .x = values.data(),
                 .out = values.data(),
                 .samples = 1,
                 .per_sample = count,
                 .mask = mask},
                nullptr);
  const std::vector<unsigned char> bytes = values.bits();
  EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0);
}

TEST_F(GpuDropout, NothingIsNoLaunch) {
  apply_dropout({.type = Type::Float32,
                 .x = nullptr,
                 .out = nullptr,
                 .samples = 0,
                 .per_sample = 7,
                 .mask = {}},
                nullptr);
}

}  // namespace
}  // namespace penstock::gpu
