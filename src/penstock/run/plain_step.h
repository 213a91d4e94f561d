// The training step in its plainest form: every layer keeps everything, one micro-batch after the
// other. What a planned step must reproduce, bit for bit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/model/layer.h"
#include "penstock/run/stepper.h"

namespace penstock::model {
class Chain;
class Parameters;
}  // namespace penstock::model

namespace penstock::run {

struct StepInput {
  // The batch, by field. A rank may have only what its layers read, of the rows of its replica.
  model::Fields batch;
  int64_t first_sample = 0;  // of the batch, in the run
  int64_t samples = 0;       // of the whole batch; 0: as many as are here
  int64_t first_row = 0;     // of the whole batch: the first that is here
  // What each update has to divide by: its targets that count, of all replicas. Empty: they are here.
  std::vector<int64_t> counts = {};
  // Of all fields, also those that are not here, for any number of samples. Empty: all are here.
  std::map<std::string, model::TensorShape> shapes = {};
  int64_t micro_batches = 1;  // divides the samples
  uint64_t seed = 0;
  int64_t step = 0;
  double loss_scale = 1;                       // gradients are those of the loss times this
  std::vector<UpdateSettings> updates = {{}};  // of a program's updates, in order
};

// Adds to the parameters' gradients those of the mean loss over all targets of the step that count,
// and returns that mean.
double accumulate_gradients(const model::Chain& chain,
                            model::Parameters& parameters,
                            const StepInput& input);

// In which order replicas with a fixed order of reduction add up gradients.
struct ReplicaOrder {
  int64_t replicas = 1;
  bool reduces_each_micro_batch = false;  // gradients are sharded
  bool adds_shared_last = false;  // those of a table that two layers share are reduced apart
};
// The same on one device, in their order; input.micro_batches are those of each replica.
double accumulate_as_replicas(const model::Chain& chain,
                              model::Parameters& parameters,
                              const StepInput& input,
                              const ReplicaOrder& order);

// Rows of every field; of the loss's targets; how many rows there are (0: no field).
model::Fields rows_of(const model::Fields& batch, int64_t first, int64_t count);
model::Tensors targets_of(const model::Chain& chain, const model::Fields& batch);
int64_t rows_in(const model::Fields& batch);

struct LossSum {
  double sum = 0;
  int64_t count = 0;
};
// Without dropout, keeping nothing: what the program of an evaluation must reproduce.
LossSum evaluate(const model::Chain& chain,
                 const model::Parameters& parameters,
                 const model::Fields& batch);

// What the model predicts for each position, likewise.
at::Tensor predict(const model::Chain& chain,
                   const model::Parameters& parameters,
                   const model::Fields& batch);

// For the last position alone, [samples, ...]: all of them may be more than a limit has room for.
at::Tensor predict_next(const model::Chain& chain,
                        const model::Parameters& parameters,
                        const model::Fields& batch);

}  // namespace penstock::run
