// Who goes backward over a layer for a micro-batch, over all ranks of one replica.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/program/carried_check.h"
#include "penstock/program/program.h"

namespace penstock::program {

struct Backwards {
  explicit Backwards(const Program& program)
      : layers(program.layers.size()),
        rank_of(layers, kNone),
        inputs(layers * static_cast<size_t>(program.micro_batches), 0),
        weights(inputs.size(), 0),
        losses(static_cast<size_t>(program.micro_batches), 0) {}

  size_t index(int32_t layer, int32_t micro_batch) const {
    return static_cast<size_t>(micro_batch) * layers + static_cast<size_t>(layer);
  }

  static constexpr int32_t kNone = -1;
  size_t layers;
  std::vector<int32_t> rank_of;          // of a layer: who runs it
  std::vector<int32_t> inputs, weights;  // by layer and micro-batch: of a whole backward both
  std::vector<int32_t> losses;           // by micro-batch
  int32_t loss_rank = kNone;
  CarriedMessages carried;
};

}  // namespace penstock::program
