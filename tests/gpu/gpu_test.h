// What the kernel tests share, without LibTorch: device buffers that start as NaN and notice writes
// outside of them, fresh random inputs, and the comparison with a float64 reference.
//
//   Random random;                                   // prints its seed
//   const std::vector<float> x = rounded(type, random.normal(count));
//   DeviceBuffer in(type, x), out(type, count);      // out is NaN until the kernel writes it
//   gelu(type, in.data(), out.data(), count, nullptr);
//   EXPECT_LT(relative_error(out.download(), reference), tolerance(type));
//   EXPECT_TRUE(out.is_guard_intact());
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "penstock/gpu/check.h"
#include "penstock/gpu/types.h"

namespace penstock::gpu {

inline constexpr Type kAllTypes[] = {Type::Float32, Type::BFloat16, Type::Float16};

inline const char* name_of(Type type) {
  switch (type) {
    case Type::Float32:
      return "float32";
    case Type::BFloat16:
      return "bfloat16";
    case Type::Float16:
      return "float16";
  }
  return "?";
}

// The relative norm of the error that rounding to `type` may cause.
inline double tolerance(Type type) {
  switch (type) {
    case Type::Float32:
      return 1e-5;
    case Type::BFloat16:
      return 1e-2;
    case Type::Float16:
      return 2e-3;
  }
  return 0;
}

// The bits of `value` rounded to `type`, in the low bytes; and back.
inline uint32_t encode(Type type, float value) {
  switch (type) {
    case Type::Float32:
      return std::bit_cast<uint32_t>(value);
    case Type::BFloat16:
      return static_cast<__nv_bfloat16_raw>(__float2bfloat16(value)).x;
    case Type::Float16:
      return static_cast<__half_raw>(__float2half(value)).x;
  }
  return 0;
}

inline float decode(Type type, uint32_t bits) {
  switch (type) {
    case Type::Float32:
      return std::bit_cast<float>(bits);
    case Type::BFloat16:
      return std::bit_cast<float>(bits << 16);
    case Type::Float16: {
      __half_raw raw;
      raw.x = static_cast<unsigned short>(bits);
      return __half2float(raw);
    }
  }
  return 0;
}

// The values as an element of `type` holds them: what a reference must start from.
inline std::vector<float> rounded(Type type, std::vector<float> values) {
  for (float& value : values) {
    value = decode(type, encode(type, value));
  }
  return values;
}

// Bytes on the device, all 0xFF (NaN in every type) until written, between two guards of 0xFF.
class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t bytes) : bytes_(bytes) {
    PENSTOCK_CUDA(cudaMalloc(&base_, static_cast<size_t>(bytes + 2 * kGuardBytes)));
    PENSTOCK_CUDA(cudaMemset(base_, 0xFF, static_cast<size_t>(bytes + 2 * kGuardBytes)));
  }
  ~DeviceBytes() { cudaFree(base_); }
  DeviceBytes(DeviceBytes&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* data() const { return static_cast<char*>(base_) + kGuardBytes; }
  int64_t size() const { return bytes_; }
  void poison() { PENSTOCK_CUDA(cudaMemset(data(), 0xFF, static_cast<size_t>(bytes_))); }

  void upload(const void* source) {
    PENSTOCK_CUDA(cudaMemcpy(data(), source, static_cast<size_t>(bytes_), cudaMemcpyHostToDevice));
  }
  // Waits for the device first, so a kernel's failure shows here.
  std::vector<unsigned char> bits() const { return copy(kGuardBytes, bytes_); }

  // False when something wrote just before or just after the bytes.
  bool is_guard_intact() const {
    for (const int64_t first : {int64_t{0}, kGuardBytes + bytes_}) {
      for (const unsigned char byte : copy(first, kGuardBytes)) {
        if (byte != 0xFF) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  static constexpr int64_t kGuardBytes = 256;  // keeps data() aligned as cudaMalloc aligns

  std::vector<unsigned char> copy(int64_t first, int64_t bytes) const {
    std::vector<unsigned char> host(static_cast<size_t>(bytes));
    PENSTOCK_CUDA(cudaDeviceSynchronize());
    PENSTOCK_CUDA(cudaMemcpy(host.data(),
                             static_cast<const char*>(base_) + first,
                             static_cast<size_t>(bytes),
                             cudaMemcpyDeviceToHost));
    return host;
  }

  void* base_ = nullptr;
  int64_t bytes_ = 0;
};

// Elements of a gpu::Type; uploads and downloads convert from and to float. `offset` elements are
// put in front, so that data() can be made unaligned.
class DeviceBuffer {
 public:
  DeviceBuffer(Type type, int64_t count, int64_t offset = 0)
      : type_(type), count_(count), offset_(offset), bytes_((count + offset) * size_of(type)) {}
  DeviceBuffer(Type type, const std::vector<float>& values, int64_t offset = 0)
      : DeviceBuffer(type, static_cast<int64_t>(values.size()), offset) {
    upload(values);
  }

  void* data() const { return static_cast<char*>(bytes_.data()) + offset_ * size_of(type_); }
  float* floats() const { return static_cast<float*>(data()); }  // for Type::Float32 alone
  int64_t count() const { return count_; }
  bool is_guard_intact() const { return bytes_.is_guard_intact(); }
  std::vector<unsigned char> bits() const { return bytes_.bits(); }
  void poison() { bytes_.poison(); }

  void upload(const std::vector<float>& values) {
    std::vector<unsigned char> host(static_cast<size_t>(bytes_.size()), 0xFF);
    const int64_t size = size_of(type_);
    for (int64_t i = 0; i < count_; ++i) {
      const uint32_t element = encode(type_, values[static_cast<size_t>(i)]);
      std::memcpy(
          &host[static_cast<size_t>((offset_ + i) * size)], &element, static_cast<size_t>(size));
    }
    bytes_.upload(host.data());
  }

  std::vector<float> download() const {
    const std::vector<unsigned char> host = bytes_.bits();
    std::vector<float> values(static_cast<size_t>(count_));
    const int64_t size = size_of(type_);
    for (int64_t i = 0; i < count_; ++i) {
      uint32_t element = 0;
      std::memcpy(
          &element, &host[static_cast<size_t>((offset_ + i) * size)], static_cast<size_t>(size));
      values[static_cast<size_t>(i)] = decode(type_, element);
    }
    return values;
  }

 private:
  Type type_;
  int64_t count_;
  int64_t offset_;
  DeviceBytes bytes_;
};

// Plain values that are no gpu::Type: int64_t targets, a double total.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : bytes_(count * static_cast<int64_t>(sizeof(T))) {}
  explicit DeviceArray(const std::vector<T>& values)
      : DeviceArray(static_cast<int64_t>(values.size())) {
    upload(values);
  }

  T* data() const { return static_cast<T*>(bytes_.data()); }
  bool is_guard_intact() const { return bytes_.is_guard_intact(); }
  void upload(const std::vector<T>& values) { bytes_.upload(values.data()); }
  std::vector<T> download() const {
    const std::vector<unsigned char> host = bytes_.bits();
    std::vector<T> values(host.size() / sizeof(T));
    std::memcpy(values.data(), host.data(), host.size());
    return values;
  }

 private:
  DeviceBytes bytes_;
};

// Inputs that differ in every run; PENSTOCK_TEST_SEED repeats one.
class Random {
 public:
  Random() : Random(fresh_seed()) {}
  explicit Random(uint32_t seed) : engine_(seed) {
    std::cout << "[   seed   ] " << seed << std::endl;
  }

  std::vector<float> normal(int64_t count, float deviation = 1, float mean = 0) {
    std::normal_distribution<float> draw(mean, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      value = draw(engine_);
    }
    return values;
  }
  std::vector<float> uniform(int64_t count, float low, float high) {
    std::uniform_real_distribution<float> draw(low, high);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      value = draw(engine_);
    }
    return values;
  }
  // Each in first .. last, both included.
  std::vector<int64_t> integers(int64_t count, int64_t first, int64_t last) {
    std::uniform_int_distribution<int64_t> draw(first, last);
    std::vector<int64_t> values(static_cast<size_t>(count));
    for (int64_t& value : values) {
      value = draw(engine_);
    }
    return values;
  }

 private:
  static uint32_t fresh_seed() {
    const char* given = std::getenv("PENSTOCK_TEST_SEED");
    return given == nullptr ? std::random_device{}()
                            : static_cast<uint32_t>(std::strtoul(given, nullptr, 10));
  }

  std::mt19937 engine_;
};

// ||out - reference|| / ||reference|| (||out|| where the reference is all zero). A NaN or an
// infinity anywhere, or another length, gives infinity: it never passes. Half of `step` is taken off
// each difference: the smallest subnormal of a type (below), where a result alone may be one.
inline double relative_error(const std::vector<float>& out,
                             const std::vector<double>& reference,
                             double step = 0) {
  if (out.size() != reference.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double difference = std::abs(static_cast<double>(out[i]) - reference[i]);
    const double beyond = difference <= step / 2 ? 0 : difference - step / 2;
    error += beyond * beyond;
    norm += reference[i] * reference[i];
  }
  if (!std::isfinite(error) || !std::isfinite(norm)) {
    return std::numeric_limits<double>::infinity();
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

// The distance of the type's numbers next to zero: the others reach far below what tests compute.
inline double smallest_step(Type type) {
  return type == Type::Float16 ? 0x1p-24 : 0;
}

// As relative_error, of sums that may cancel: relative to the sums of their terms' magnitudes, to
// which alone the rounding of additions is in proportion.
inline double error_of_sums(const std::vector<float>& out,
                            const std::vector<double>& reference,
                            const std::vector<double>& magnitudes) {
  double norm = 0;
  double magnitude = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    norm += reference[i] * reference[i];
    magnitude += magnitudes[i] * magnitudes[i];
  }
  return norm > 0 ? relative_error(out, reference) * std::sqrt(norm / magnitude)
                  : relative_error(out, reference) / std::sqrt(magnitude);
}

// Tests derive from this: without a GPU they are skipped, not failed.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      cudaGetLastError();
      GTEST_SKIP() << "no GPU";
    }
  }
};

}  // namespace penstock::gpu
