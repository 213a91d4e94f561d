// SwiGLU between the GEMMs: silu(gate) * up, and the gradients of both. In float32 inside.
#pragma once

#include <cstdint>

#include "penstock/gpu/types.h"

namespace penstock::gpu {

struct Swiglu {
  Type type;
  const void* gate;  // [count]
  const void* up;    // [count]
  void* out;         // [count]; may be gate or up itself
  int64_t count;
};
void swiglu(const Swiglu& work, Stream stream);

struct SwigluBackward {
  Type type;
  const void* gradient;  // [count], of swiglu's output
  const void* gate;      // [count]
  const void* up;        // [count]
  // [count] each; each may be any one of the three above.
  void* gate_gradient;
  void* up_gradient;
  int64_t count;
};
void swiglu_backward(const SwigluBackward& work, Stream stream);

}  // namespace penstock::gpu
