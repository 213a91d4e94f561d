// Fresh tensors for tests, the same in every run.
#pragma once

#include <ATen/ATen.h>

namespace penstock::test {

inline at::Tensor random_tensor(at::IntArrayRef shape,
                                uint64_t seed,
                                at::ScalarType type = at::kFloat) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions(at::kFloat)).to(type);
}

inline at::Tensor random_tokens(at::IntArrayRef shape, int64_t vocabulary, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(0, vocabulary, shape, generator, at::TensorOptions(at::kLong));
}

// |a - b| / |b| over all elements, in double.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  const double size = wide.norm().item<double>();
  const double difference = (a.to(at::kDouble) - wide).norm().item<double>();
  return size > 0 ? difference / size : difference;
}

// The largest |a - b| over the largest |b|, in double: one wrong element shows, however many are right.
inline double largest_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  const double size = wide.abs().max().item<double>();
  const double difference = (a.to(at::kDouble) - wide).abs().max().item<double>();
  return size > 0 ? difference / size : difference;
}

}  // namespace penstock::test
