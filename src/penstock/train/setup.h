// From a recipe to the things a run consists of. Shared by the commands that build a model.
#pragma once

#include <ATen/core/Tensor.h>

#include "penstock/config/recipe.h"
#include "penstock/data/batch.h"
#include "penstock/data/dataset.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"

namespace penstock::train {

// Threads, allocator and products; once per process, before the first tensor.
void prepare_process(const config::RunOptions& options);

model::Chain make_chain(const config::ModelOptions& model);
at::ScalarType compute_type(const config::TrainOptions& train);
data::Split open_data(const config::Recipe& recipe);

// Where the recipe names weights to start from, takes them.
void load_start_weights(const config::ModelOptions& model, model::Parameters& parameters);

struct BatchTensors {
  at::Tensor inputs, targets;  // [sequences, context]; views of the batch, which must outlive them
};
BatchTensors as_tensors(const data::Batch& batch);

}  // namespace penstock::train
