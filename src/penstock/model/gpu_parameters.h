// What the parameters of a chain for a GPU have beside those of one for the CPU, and what layers do
// about gradients that hold nothing yet.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "penstock/model/layer.h"

namespace penstock::model {

// The gradients of matrices come out of GEMMs, which may overwrite.
inline std::vector<ParameterSpec> with_overwritten_gradients(std::vector<ParameterSpec> specs) {
  for (ParameterSpec& spec : specs) {
    spec.is_gradient_overwritten = spec.shape.size() == 2;
  }
  return specs;
}

// Rows of a head's table, with those of zeros behind it.
inline int64_t padded_rows(int64_t vocabulary) {
  constexpr int64_t kUnit = 64;
  return (vocabulary + kUnit - 1) / kUnit * kUnit;
}

// The table of a head, [vocabulary, width].
inline void make_head_table(ParameterSpec& spec) {
  spec.is_gradient_overwritten = true;
  spec.padding = (padded_rows(spec.shape[0]) - spec.shape[0]) * spec.shape[1];
}

// For a backward_input whose backward_weight will add to these gradients: what is fresh is said to
// be so only once, to whoever comes first.
inline void clear_fresh(const Gradients& gradients, std::initializer_list<size_t> indices) {
  for (const size_t index : indices) {
    if (gradients.is_fresh(index)) {
      gradients[index].zero_();
    }
  }
}

}  // namespace penstock::model
