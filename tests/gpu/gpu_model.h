// What the GPU tests with LibTorch share: one GPU opened twice, as fast and as deterministic, the
// skipping of tests where there is none, and what steps without an update need.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include "penstock/device/gpu_context.h"
#include "penstock/gpu/check.h"
#include "penstock/model/parameters.h"
#include "penstock/run/stepper.h"

#include "support/random_tensor.h"

namespace penstock::test {

inline bool has_gpu() {
  int count = 0;
  const bool is_there = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  static_cast<void>(cudaGetLastError());
  return is_there;
}

// class Head : public OnGpu<> {};   class Layers : public OnGpu<testing::TestWithParam<Case>> {};
template <typename Base = testing::Test>
class OnGpu : public Base {
 protected:
  void SetUp() override {
    if (!has_gpu()) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

// The same device every time, with its stream as the current one: what LibTorch does itself, and
// dropout, goes there. Never closed, for CUDA may be gone before static objects are.
inline const device::Device& gpu(bool is_deterministic) {
  struct Opened {
    device::Device device;
    c10::cuda::CUDAStream stream;
  };
  static auto* opened = new std::array<std::unique_ptr<Opened>, 2>;
  std::unique_ptr<Opened>& one = opened->at(is_deterministic ? 1 : 0);
  if (one == nullptr) {
    device::Device device = device::open_gpu({.is_deterministic = is_deterministic});
    one = std::make_unique<Opened>(Opened{std::move(device), c10::cuda::getCurrentCUDAStream()});
  }
  PENSTOCK_CUDA(cudaDeviceSynchronize());  // the other one's work
  c10::cuda::setCurrentCUDAStream(one->stream);
  return one->device;
}

inline const char* type_name(at::ScalarType type) {
  return type == at::kFloat ? "float32" : type == at::kHalf ? "float16" : "bfloat16";
}

// The relative norm of the error that a chain of roundings to `type` may cause.
inline double chain_tolerance(at::ScalarType type) {
  return type == at::kFloat ? 1e-4 : type == at::kHalf ? 4e-3 : 2e-2;
}

// Bytes that a tensor occupies in the caching allocator's books.
inline int64_t occupied(int64_t bytes) {
  return (bytes + 511) / 512 * 512;
}

inline double error_of(const at::Tensor& on_gpu, const at::Tensor& expected) {
  return relative_error(on_gpu.cpu(), expected.detach().cpu());
}

// What parameters have in a flat buffer of theirs, on the CPU: without the padding, which differs
// between devices.
inline at::Tensor packed(const model::Parameters& parameters, const at::Tensor& flat) {
  std::vector<at::Tensor> parts;
  for (const model::Parameter& parameter : parameters.all()) {
    parts.push_back(flat.narrow(0, parameter.offset, parameter.spec.count()).cpu());
  }
  return at::cat(parts);
}

// What a step before may have left; padding stays zero.
inline void spoil_gradients(const model::Parameters& parameters) {
  for (const model::Parameter& parameter : parameters.all()) {
    at::Tensor(parameter.gradient).fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

// Moves nothing, and counts what it is asked for.
class CountingStepper final : public run::Stepper {
 public:
  void take_squares(model::Parameters& parameters,
                    const run::UpdateSettings& settings,
                    bool for_others) override {
    ++squares;
    nothing_.take_squares(parameters, settings, for_others);
  }
  run::Squares own_squares() override { return nothing_.own_squares(); }
  void decide(const run::Squares*) override { ++decisions; }
  void move(model::Parameters&) override { ++moves; }
  run::Updated updated() override { return {}; }

  int squares = 0, decisions = 0, moves = 0;

 private:
  run::NoStepper nothing_;
};

}  // namespace penstock::test
