// Dropout by key, on tensors. The mask is a function of (seed, step, sample, layer, site, element),
// so that it does not depend on how a batch is cut and comes out again when a layer is recomputed.
#pragma once

#include <ATen/core/Tensor.h>

#include "penstock/model/layer.h"

namespace penstock::model {

struct Dropout {
  double share;
  const Pass& pass;
  uint32_t site;  // tells the dropouts of one layer apart

  bool is_active() const { return share > 0 && pass.is_training; }
};

// x *= 0 or 1 / (1 - share); x is [samples, ...], contiguous. Does nothing where it is not active.
void apply_dropout(at::Tensor& x, const Dropout& dropout);

// The gradient of what was dropped; `gradient` itself stays as it is.
at::Tensor dropout_backward(const at::Tensor& gradient, const Dropout& dropout);

}  // namespace penstock::model
