// Causal self-attention between the projections: from queries, keys and values, side by side in
// [B, T, features], to the mixed values, and back. Works below autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include "penstock/model/dropout.h"

namespace penstock::model {

// Heads of keys, and of values, each serve as many neighbouring heads of queries.
struct HeadCounts {
  int64_t queries, keys;

  int64_t group() const { return queries / keys; }
  // Features of a head, where queries, keys and values together have `features`.
  int64_t width_of(int64_t features) const { return features / (queries + 2 * keys); }
};

struct MixedHeads {
  at::Tensor values;  // [B T, C]
  // What backward needs beside qkv and the values: one number per row (fused attention), or the
  // probabilities [B, H, T, T] where they are dropped. Undefined: recomputed in backward.
  at::Tensor statistics;
};

// As many heads of keys as of queries: qkv is [B, T, 3C]. With dropout the probabilities of one
// sample exist at a time, unless they are kept.
MixedHeads attend(const at::Tensor& qkv, int64_t heads, const Dropout& dropout, bool keeps_all);

// The gradient of qkv, as [B T, 3C]. Takes its inputs over, to free or reuse them as soon as it
// can: qkv is overwritten.
at::Tensor attend_backward(at::Tensor qkv,
                           MixedHeads mixed,
                           at::Tensor values_gradient,
                           int64_t heads,
                           const Dropout& dropout);

// One sample after the other, with the probabilities of one sample at a time: on any device, in any
// precision, with or without dropout, for any number of heads of keys. What `attend` does where
// dropout is active.
MixedHeads attend_by_sample(const at::Tensor& qkv,
                            const HeadCounts& heads,
                            const Dropout& dropout,
                            bool keeps_all);
// The gradient takes the place of qkv.
at::Tensor attend_by_sample_backward(at::Tensor qkv,
                                     const at::Tensor& kept_probabilities,
                                     const at::Tensor& gradient,
                                     const HeadCounts& heads,
                                     const Dropout& dropout);

}  // namespace penstock::model
