// Chains with small whole numbers, as the literature writes them.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/plan/cost_table.h"

namespace penstock::test {

struct Stage {
  double forward = 0;
  double backward = 0;
  int64_t size = 0;  // of the output
  int64_t kept = 0;  // output included
  int64_t forward_extra = 0;
  int64_t backward_extra = 0;
};

// `sizes` of the literature: x_0 is the input.
inline plan::CostTable make_chain(int64_t input,
                                  const std::vector<Stage>& stages,
                                  int64_t loss_extra = 0) {
  plan::CostTable table;
  for (const Stage& stage : stages) {
    plan::LayerCost layer{.name = "layer",
                          .input_bytes = input,
                          .output_bytes = stage.size,
                          .forward_s = stage.forward,
                          .forward_extra_bytes = stage.forward_extra};
    layer.name += std::to_string(table.layers.size());
    layer.modes = {{.forward_s = stage.forward,
                    .backward_s = stage.backward,
                    .saved_bytes = stage.kept,
                    .forward_extra_bytes = stage.forward_extra,
                    .backward_extra_bytes = stage.backward_extra,
                    .recompute_s = stage.forward,
                    .recompute_extra_bytes = stage.forward_extra}};
    table.layers.push_back(layer);
    input = stage.size;
  }
  table.loss.extra_bytes = loss_extra;
  return table;
}

inline plan::CostTable homogeneous(size_t layers, const Stage& stage) {
  return make_chain(stage.size, std::vector<Stage>(layers, stage));
}

}  // namespace penstock::test
