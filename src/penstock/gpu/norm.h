// Layer normalisation over the last dim, and root-mean-square normalisation, which takes no mean off
// and has no shift; in float32 inside. Backward gives, beside the gradient of the input, those of
// scale and shift, and can add the residual's gradient and sum the columns of the result on the way
// (the bias gradient of the layer before), so that each costs no further pass.
#pragma once

#include <cstdint>

#include "penstock/gpu/types.h"

namespace penstock::gpu {

struct NormForward {
  Type type;
  const void* x;             // [rows, width]
  const float* scale;        // [width]
  const float* shift;        // [width]; not read by rms_norm
  void* out;                 // [rows, width]
  float* mean;               // [rows] or null; not written by rms_norm
  float* inverse_deviation;  // [rows] or null
  int64_t rows, width;
  float epsilon = 1e-5f;
};

// out = (x - mean) / sqrt(variance + epsilon) * scale + shift.
void layer_norm(const NormForward& work, Stream stream);
// out = x * inverse_deviation * scale, with 1 / sqrt(mean of x² + epsilon) for the deviation.
void rms_norm(const NormForward& work, Stream stream);

struct NormBackward {
  Type type;
  const void* dy;                  // [rows, width]
  const void* x;                   // [rows, width]
  const float* scale;              // [width]
  const float* mean;               // [rows], from layer_norm; not read by rms_norm_backward
  const float* inverse_deviation;  // [rows], from layer_norm or rms_norm
  const void* residual_gradient;   // [rows, width] or null
  void* dx;                        // [rows, width]; may be dy or residual_gradient itself
  float* scale_gradient;           // [width], added to
  float* shift_gradient;           // [width], added to; not by rms_norm_backward
  // [width] or null; the column sums of dx, as rounded, are added. Null for rms_norm_backward.
  float* dx_column_sums;
  float* workspace;  // norm_backward_workspace_floats(width)
  int64_t rows, width;
};

// For any number of rows, on the current device.
int64_t norm_backward_workspace_floats(int64_t width);

// dx = residual_gradient + the gradient of layer_norm's input. Fastest to a width of 6144 (3072 in
// float32), with a width that is a multiple of 8 and pointers aligned to 16 bytes.
void layer_norm_backward(const NormBackward& work, Stream stream);
void rms_norm_backward(const NormBackward& work, Stream stream);

}  // namespace penstock::gpu
