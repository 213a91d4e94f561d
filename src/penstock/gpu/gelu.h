// GELU in its tanh approximation: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
#pragma once

#include <cstdint>

#include "penstock/gpu/types.h"

namespace penstock::gpu {

// out may be x itself.
void gelu(Type type, const void* x, void* out, int64_t count, Stream stream);

struct GeluBackward {
  Type type;
  const void* dy;        // [rows, width]
  const void* x;         // [rows, width], the input of gelu
  void* dx;              // [rows, width]; may be dy itself
  float* bias_gradient;  // null, or [width]: the column sums of dx, as rounded, are added
  float* workspace;      // gelu_backward_workspace_floats(width); unused without bias_gradient
  int64_t rows, width;
};

// For any number of rows, on the current device.
int64_t gelu_backward_workspace_floats(int64_t width);
void gelu_backward(const GeluBackward& work, Stream stream);

}  // namespace penstock::gpu
