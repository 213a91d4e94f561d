// Softmax cross-entropy of rows of logits, and its gradient in the logits' place: each logit is
// read once and written once.
#pragma once

#include <cstdint>

#include "penstock/gpu/types.h"

namespace penstock::gpu {

struct CrossEntropy {
  Type type;
  void* logits;  // [rows, stride]; becomes the gradient when writes_gradient
  int64_t rows, vocabulary;
  int64_t stride;          // elements between rows, at least the vocabulary
  const int64_t* targets;  // [rows]; a negative one does not count: loss 0, gradient 0
  float* losses;           // [rows], written
  float scale;             // gradient = (softmax - onehot) * scale
  bool writes_gradient;    // then columns from vocabulary to stride become 0
};

// loss = log(sum(exp(logits))) - logits[target], in float32. A target beyond the vocabulary gives a
// NaN for its loss (and a gradient without its one). Fastest with a stride that is a multiple of 8,
// logits aligned to 16 bytes and rows that fit shared memory: a vocabulary to about 115,000 (57,000
// in float32).
void cross_entropy(const CrossEntropy& work, Stream stream);

}  // namespace penstock::gpu
