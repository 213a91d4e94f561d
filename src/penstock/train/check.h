// Whether a plan changes the numbers: trains the same model twice, once as planned and once keeping
// everything, and compares every activation, gradient, parameter gradient and weight by checksum.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/config/recipe.h"
#include "penstock/model/chain.h"
#include "penstock/program/program.h"
#include "penstock/train/setup.h"

namespace penstock::train {

struct CheckReport {
  int64_t steps = 0;                     // compared
  int64_t tensors = 0;                   // compared, each time it was made
  bool is_equal = false;                 // as far as asked for: an interrupted check is not
  std::string first_difference;          // which tensor, at which step, made by which instruction
  double loss = 0;                       // of the last step compared, as planned
  int64_t peak_bytes = 0;                // of the planned side, with its own weights and state
  std::vector<int64_t> rank_peak_bytes;  // likewise, of each rank of several
  // Where ranks add up gradients otherwise than one device can: why, and how far apart the sums may
  // be and were, as a part of the norm of all gradients. Empty: all is compared to the bit.
  std::string reordered = {};
  double allowed_difference = 0, largest_difference = 0;
};

struct CheckOptions {
  int64_t steps = 3;
  std::function<model::Fields(int64_t step)> batch;  // of the recipe's batch size
  std::function<void(int64_t)> on_step = nullptr;
  device::Device device;  // that the chain was made for
};

// `planned` and `kept` are programs of this chain with the recipe's micro-batches; the latter keeps
// everything. The planned side is held to the limit of its program.
CheckReport check_plan(const config::Recipe& recipe,
                       const model::Chain& chain,
                       const program::Program& planned,
                       const program::Program& kept,
                       const CheckOptions& options);

}  // namespace penstock::train
