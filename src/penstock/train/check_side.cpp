#include "penstock/train/check_side.h"

#include <ATen/ATen.h>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/plan/plan.h"
#include "penstock/train/machine.h"
#include "penstock/train/rank_holdings.h"

namespace penstock::train {

uint32_t digest(const model::Tensors& tensors) {
  uint32_t sum = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      const at::Tensor whole = tensor.contiguous().cpu();
      sum = crc32c(whole.const_data_ptr(), whole.nbytes(), sum);
    }
  }
  return sum;
}

ValueKey key_of(const program::Value& value) {
  const bool is_carried = program::info_of(value.kind).has_element;
  return {value.kind, is_carried ? value.element : value.layer, value.micro_batch};
}

bool is_compared(const program::Value& value) {
  // The gradient of what is carried is added up on its way: there is one for each reader.
  return value.kind == program::ValueKind::Activation ||
         value.kind == program::ValueKind::Gradient || value.kind == program::ValueKind::Carried;
}

std::string value_text(const program::Program& program, const program::Value& value) {
  const auto name = [&](int32_t layer) {
    return layer == program.loss_index() ? std::string("the loss")
                                         : program.layers[static_cast<size_t>(layer)].name;
  };
  if (value.kind == program::ValueKind::Carried) {
    return cat(program.carried[static_cast<size_t>(value.element)].name,
               ", micro-batch ",
               value.micro_batch);
  }
  const std::string what = value.kind == program::ValueKind::Gradient
                               ? cat("the gradient of the input of ", name(value.layer))
                               : cat("the output of ", name(value.layer - 1));
  return cat(what, ", micro-batch ", value.micro_batch);
}

namespace {

comm::Coordinates place_of(const config::Recipe& recipe, const comm::Group& group) {
  return plan::mesh_of(recipe.plan).coordinates(group.rank());
}

model::Replication own_replication(const config::Recipe& recipe,
                                   const model::Chain& chain,
                                   const std::vector<int32_t>& cuts,
                                   const comm::Group& group) {
  return recipe.plan.data == 1 ? model::Replication{}
                               : replication_of(recipe, chain, cuts, place_of(recipe, group).data);
}

}  // namespace

Side::Side(const config::Recipe& recipe,
           const model::Chain& chain,
           const program::Program& program,
           const device::Device& device)
    : parameters(
          chain, compute_type(recipe.train), static_cast<uint64_t>(recipe.train.seed), device),
      optimizer(optim::make_optimizer(recipe.train, parameters)),
      executor(program, chain, parameters) {}

Side::Side(const config::Recipe& recipe,
           const model::Chain& chain,
           const program::Program& program,
           const std::vector<model::Part>& parts,
           const std::vector<int32_t>& cuts,
           const device::Device& device,
           comm::Group& group)
    : parameters(chain,
                 parts[static_cast<size_t>(place_of(recipe, group).pipeline)],
                 compute_type(recipe.train),
                 static_cast<uint64_t>(recipe.train.seed),
                 device,
                 own_replication(recipe, chain, cuts, group)),
      replicas(recipe.plan.data == 1
                   ? nullptr
                   : std::make_unique<run::Replicas>(
                         group, replica_options(recipe, chain, find_machine(recipe)))),
      optimizer(optim::make_optimizer(recipe.train, parameters)),
      executor(program, chain, parameters, group, replicas.get()) {}

namespace {

double loss_scale_of(const config::Recipe& recipe) {
  return recipe.train.precision == "float16" ? recipe.train.loss_scale : 1;
}

}  // namespace

run::UpdateSettings update_settings(const config::Recipe& recipe, int64_t step) {
  return {.rate = optim::rate_at(recipe.train, step),
          .clip = recipe.train.clip,
          .loss_scale = loss_scale_of(recipe)};
}

run::StepInput step_input(const config::Recipe& recipe, const model::Fields& batch, int64_t step) {
  return {.batch = batch,
          .first_sample = step * recipe.train.batch,
          .micro_batches = recipe.plan.micro_batches,
          .seed = static_cast<uint64_t>(recipe.train.seed),
          .step = step,
          .loss_scale = loss_scale_of(recipe),
          .updates = {update_settings(recipe, step)}};
}

void require_applied(const config::Recipe& recipe, const run::Updated& updated, int64_t step) {
  if (!updated.was_applied) {
    throw Error(ExitCode::Negative,
                cat("the gradients of step ",
                    step + 1,
                    " are not finite, so there is nothing to compare; try a lower train.lr",
                    loss_scale_of(recipe) > 1 ? " or train.loss_scale" : ""));
  }
}

double Side::train(const config::Recipe& recipe, const model::Fields& batch, int64_t step) {
  const double loss = executor.run(step_input(recipe, batch, step), *optimizer);
  require_applied(recipe, executor.outcomes().back(), step);
  return loss;
}

}  // namespace penstock::train
