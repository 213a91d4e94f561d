// Root-mean-square norm of rows, out = x / rms(x) * scale, and its gradients. Everything between
// reading and writing is float32.
#pragma once

#include <cstdint>

#include "penstock/kernels/cpu.h"

namespace penstock::kernels {

// inverse[r] = 1 / sqrt(mean of x[r, :]² + epsilon), out[r, :] = x[r, :] * inverse[r] * scale.
template <typename T>
struct RmsNormForward {
  const T* x;
  const float* scale;
  T* out;
  float* inverse;
  int64_t width;
  float epsilon;
};
void rms_norm(const RmsNormForward<float>& work, int64_t first_row, int64_t last_row);
void rms_norm(const RmsNormForward<Bf16>& work, int64_t first_row, int64_t last_row);

// dx[r, :] = the gradient of x[r, :], plus residual[r, :] where there is one. dx may be dy or
// residual.
template <typename T>
struct RmsNormBackward {
  const T* dy;
  const T* x;
  const float* scale;
  const float* inverse;
  const T* residual;
  T* dx;
  int64_t width;
};
void rms_norm_backward(const RmsNormBackward<float>& work, int64_t first_row, int64_t last_row);
void rms_norm_backward(const RmsNormBackward<Bf16>& work, int64_t first_row, int64_t last_row);

// scale_gradient += the sum over rows of dy * x * inverse, for columns first .. last. Split over
// columns, each sum has one fixed order whatever the number of threads.
template <typename T>
struct RmsNormScale {
  const T* dy;
  const T* x;
  const float* inverse;
  float* scale_gradient;
  int64_t rows;
  int64_t width;
};
void add_rms_scale_gradient(const RmsNormScale<float>& work,
                            int64_t first_column,
                            int64_t last_column);
void add_rms_scale_gradient(const RmsNormScale<Bf16>& work,
                            int64_t first_column,
                            int64_t last_column);

}  // namespace penstock::kernels
