// Softmax cross-entropy of one row of logits, in float32.
#pragma once

#include <cstdint>

#include "penstock/kernels/cpu.h"

namespace penstock::kernels {

// -log softmax(logits)[target], leaving the logits as they are.
float cross_entropy(const float* logits, int64_t vocabulary, int64_t target);

// The same, and logits become the gradient: (softmax(logits) - onehot(target)) * scale.
float cross_entropy_backward(float* logits, int64_t vocabulary, int64_t target, float scale);

}  // namespace penstock::kernels
