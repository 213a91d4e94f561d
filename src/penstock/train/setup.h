// From a recipe to the things a run consists of. Shared by the commands that build a model.
#pragma once

#include <ATen/core/Tensor.h>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"
#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"

namespace penstock::train {

// Threads, allocator and GEMMs; once per process, before the first tensor. The ranks of a
// pipeline are threads of it, each with its share of the cores, unless a launcher has started them. Where the
// recipe says run.process_memory, it has the plan.memory that goes into that afterwards.
void prepare_process(config::Recipe& recipe, int64_t asked_ranks = 0);

// The device that the recipe names, its account the one that the process's bytes are counted by.
device::Device open_device(const config::Recipe& recipe);

// The same for a rank of several, called in its own thread; there the caller sees to the account.
// The ranks of a machine take its GPUs in turn, so several may share one.
device::Device open_device(const config::Recipe& recipe, const comm::Group& group);

// Whether the recipe's step is to be recorded and replayed.
bool uses_graph(const config::Recipe& recipe, const model::Chain& chain);

at::ScalarType compute_type(const config::TrainOptions& train);

// Where the recipe names weights to start from, takes those of `parameters`, all or some of the
// chain's. With a group all ranks call it.
void load_start_weights(const config::ModelOptions& model,
                        const model::Chain& chain,
                        model::Parameters& parameters,
                        comm::Group* group = nullptr);

}  // namespace penstock::train
