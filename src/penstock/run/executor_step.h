// What the files of the executor share. Internal to run/.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/run/executor.h"

namespace penstock::run {

// The state of one run.
struct Executor::Step {
  const StepInput& input;
  Stepper& stepper;
  std::vector<Slot> slots;
  std::vector<model::Loss::Result> losses;  // by micro-batch; their gradients have moved on
  int64_t samples_each = 0;
  int64_t micro_batches_each = 1;   // of an update
  std::vector<double> scales = {};  // of each target's loss in the mean, by update
  // Of the layer at work: weights of a copy, or gathered; gradients in buckets. Views.
  model::Tensors layer_weights = {}, layer_gradients = {};
  std::vector<uint8_t> fresh_gradients = {};  // likewise: what the layer writes first
  Squares all_squares = {};                   // of the update at hand
  std::vector<double> sums = {};              // likewise: sketches or lengths, to be gathered
  size_t updates_done = 0;
  int64_t first_sample = 0;  // of this replica
  bool is_training = true;

  double scale_of(const program::Instruction& instruction) const {
    return scales[static_cast<size_t>(instruction.micro_batch / micro_batches_each)];
  }
  Slot& slot(program::ValueId id) { return slots[static_cast<size_t>(id)]; }
  const Slot& slot(program::ValueId id) const { return slots[static_cast<size_t>(id)]; }

  model::Pass pass(const program::Instruction& instruction) const {
    return {
        .seed = input.seed,
        .step = input.step + instruction.micro_batch / micro_batches_each,
        .first_sample = input.first_sample + first_sample + instruction.micro_batch * samples_each,
        .layer = instruction.layer,
        .is_training = is_training};
  }
};

// Values of one kind and layer are sent and received in the same order.
int64_t channel_number(const program::Value& value, int64_t layers);
// What goes from which rank to which, at all of them.
std::vector<Route> routes_of(const program::Program& program);

}  // namespace penstock::run
