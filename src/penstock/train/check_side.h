// One of the models that check trains: all of the chain, or what one rank of a pipeline has of it.
// And what of a model is compared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/program/program.h"
#include "penstock/run/executor.h"
#include "penstock/train/setup.h"

namespace penstock::train {

// A checksum of their bytes.
uint32_t digest(const model::Tensors& tensors);

// Which value it is, however often and wherever it is made.
// By kind, layer or carried element, and micro-batch.
using ValueKey = std::tuple<program::ValueKind, int32_t, int32_t>;
ValueKey key_of(const program::Value& value);

// Whether it is a tensor that every plan makes.
bool is_compared(const program::Value& value);

// "the output of block 0 mlp, micro-batch 1"
std::string value_text(const program::Program& program, const program::Value& value);

// What step `step` of the recipe does, and its update.
run::StepInput step_input(const config::Recipe& recipe, const model::Fields& batch, int64_t step);
run::UpdateSettings update_settings(const config::Recipe& recipe, int64_t step);
// Throws Error (exit code 1) where the gradients were not finite.
void require_applied(const config::Recipe& recipe, const run::Updated& updated, int64_t step);

struct Side {
  Side(const config::Recipe& recipe,
       const model::Chain& chain,
       const program::Program& program,
       const device::Device& device);
  // The rank of the group; `parts` are the layers of every stage, which begin at `cuts`. All ranks
  // make theirs at the same time.
  Side(const config::Recipe& recipe,
       const model::Chain& chain,
       const program::Program& program,
       const std::vector<model::Part>& parts,
       const std::vector<int32_t>& cuts,
       const device::Device& device,
       comm::Group& group);

  // One step, with its update. The loss; 0 on a rank without it. Throws Error (exit code 1) when
  // the gradients are not finite.
  double train(const config::Recipe& recipe, const model::Fields& batch, int64_t step);

  model::Parameters parameters;
  std::unique_ptr<run::Replicas> replicas;  // nothing: there are none
  std::unique_ptr<optim::Optimizer> optimizer;
  run::Executor executor;
};

}  // namespace penstock::train
