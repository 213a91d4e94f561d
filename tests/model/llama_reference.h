// Llama's layers again, written with differentiable LibTorch operations, for float64. Weights are in
// the order of the layers' parameters.
#pragma once

#include <cmath>
#include <vector>

#include <ATen/ATen.h>

#include "penstock/model/layer.h"

namespace penstock::test {

// What the references of attention take for granted: theta, and Llama 3.1's scaling by a factor from
// so many tokens before.
inline constexpr double kReferenceTheta = 100;
inline constexpr double kReferenceFactor = 8;
inline constexpr int64_t kReferenceContext = 16;

inline at::Tensor reference_rms_norm(const at::Tensor& x, const at::Tensor& scale) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + 1e-5) * scale;
}

// Hugging Face's: x cos + rotate_half(x) sin.
inline at::Tensor reference_rotary(const at::Tensor& x) {  // [B, H, T, D]
  const int64_t tokens = x.size(2), half = x.size(3) / 2;
  const double before = static_cast<double>(kReferenceContext);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < half; ++i) {
    const double frequency =
        1 / std::pow(kReferenceTheta, 2.0 * static_cast<double>(i) / static_cast<double>(2 * half));
    const double wavelength = 2 * M_PI / frequency;
    const double smooth = (before / wavelength - 1) / (4 - 1);
    frequencies.push_back(wavelength < before / 4 ? frequency
                          : wavelength > before / 1
                              ? frequency / kReferenceFactor
                              : (1 - smooth) * frequency / kReferenceFactor + smooth * frequency);
  }
  const at::Tensor angles = at::outer(at::arange(tokens, at::kDouble), at::tensor(frequencies));
  const at::Tensor all = at::cat({angles, angles}, 1);
  const at::Tensor turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
  return x * all.cos() + turned * all.sin();
}

inline at::Tensor reference_llama_attention(const model::Tensors& w,
                                            const at::Tensor& x,
                                            int64_t num_heads) {
  const int64_t b = x.size(0), t = x.size(1), c = x.size(2), d = c / num_heads;
  const at::Tensor normed = reference_rms_norm(x, w[0]);
  const auto heads = [&](const at::Tensor& weight) {
    return at::matmul(normed, weight.t()).reshape({b, t, -1, d}).transpose(1, 2);
  };
  const at::Tensor query = reference_rotary(heads(w[1]));
  const int64_t group = c / w[2].size(0);
  const at::Tensor key = reference_rotary(heads(w[2])).repeat_interleave(group, 1);
  const at::Tensor value = heads(w[3]).repeat_interleave(group, 1);
  at::Tensor scores = at::matmul(query, key.transpose(2, 3)) / std::sqrt(static_cast<double>(d));
  scores = scores.masked_fill(at::ones({t, t}, at::kBool).triu(1), -INFINITY);
  const at::Tensor mixed =
      at::matmul(at::softmax(scores, 3), value).transpose(1, 2).reshape({b, t, c});
  return x + at::matmul(mixed, w[4].t());
}

inline at::Tensor reference_llama_mlp(const model::Tensors& w, const at::Tensor& x) {
  const at::Tensor normed = reference_rms_norm(x, w[0]);
  const at::Tensor inner = at::silu(at::matmul(normed, w[1].t())) * at::matmul(normed, w[2].t());
  return x + at::matmul(inner, w[3].t());
}

}  // namespace penstock::test
