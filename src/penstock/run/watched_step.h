// A step on one device in the order of replicas, for somebody who looks at all that it makes.
#pragma once

#include <cstdint>
#include <functional>

#include "penstock/model/layer.h"
#include "penstock/program/value.h"
#include "penstock/run/plain_step.h"

namespace penstock::run {

// Micro-batches are numbered over all replicas: those of the first come first.
struct StepWatch {
  // Called for each activation and each of its gradients.
  std::function<void(
      program::ValueKind kind, int32_t layer, int32_t micro_batch, const model::Tensors& tensors)>
      on_made;
  std::function<void(int32_t micro_batch, double sum)> on_loss;
};

// As in plain_step.h.
double accumulate_as_replicas(const model::Chain& chain,
                              model::Parameters& parameters,
                              const StepInput& input,
                              const ReplicaOrder& order,
                              const StepWatch& watch);

}  // namespace penstock::run
