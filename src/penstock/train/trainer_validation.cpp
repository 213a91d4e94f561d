#include "penstock/train/trainer_validation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "penstock/data/batch.h"
#include "penstock/data/dataset.h"
#include "penstock/run/plain_step.h"
#include "penstock/run/rank_forward.h"
#include "penstock/train/diverged.h"
#include "penstock/train/rank_sums.h"
#include "penstock/train/reporter.h"
#include "penstock/train/setup.h"
#include "penstock/train/trainer_parts.h"

namespace penstock::train {

namespace {

// By this replica.
run::LossSum evaluate(const TrainerParts& parts, const data::Batch& batch) {
  const BatchTensors tensors = as_tensors(batch);
  run::Replicas* const replicas = parts.model.replicas.get();
  if (parts.mesh.pipeline == 1) {
    return run::evaluate(parts.chain, parts.parameters, tensors.inputs, tensors.targets, replicas);
  }
  return run::evaluate_stages(parts.chain,
                              parts.parameters,
                              parts.model.stages,
                              parts.pipeline ? *parts.pipeline : parts.group,
                              tensors.inputs,
                              tensors.targets,
                              replicas);
}

// The mean over the first `sequences` of the dataset.
double mean_loss(const TrainerParts& parts, const data::Dataset& dataset, int64_t sequences) {
  const int64_t at_once = parts.recipe.micro_batch_size();
  const int64_t batches = (sequences + at_once - 1) / at_once;
  const int64_t replicas = parts.mesh.data;
  run::LossSum total;
  // The replicas take a batch each at the same time. Where some are left over they repeat the last,
  // for weights may have to be gathered by all, and it does not count.
  for (int64_t round = 0; round < batches; round += replicas) {
    const int64_t number = round + parts.parameters.replica();
    const int64_t first = std::min(number, batches - 1) * at_once;
    const data::Batch batch =
        data::read_in_order(dataset, first, std::min(at_once, sequences - first));
    run::LossSum part = evaluate(parts, batch);
    part = number < batches ? part : run::LossSum{};
    total.count += part.count;
    // One after the other, in the order of the batches.
    for (const double sum :
         replicas > 1 ? gather_ranks(part.sum, parts.group) : std::vector{part.sum}) {
      total.sum += sum;
    }
  }
  const double sum = replicas > 1 ? total.sum : sum_ranks(total.sum, parts.group);
  return sum / sum_ranks(static_cast<double>(total.count), parts.group);
}

}  // namespace

std::optional<double> validate(TrainerParts& parts) {
  if (!parts.split.validation) {
    return std::nullopt;
  }
  parts.executor.release_graph();
  const data::Dataset& dataset = *parts.split.validation;
  const int64_t sequences = std::min(parts.recipe.run.validate_sequences, dataset.samples());
  const double loss = mean_loss(parts, dataset, sequences);
  if (!std::isfinite(loss)) {
    fail_diverged("validation loss", parts.state.step, parts.recipe.train);
  }
  if (parts.reporter) {
    parts.reporter->show_validation(parts.state.step, loss, sequences);
  }
  return loss;
}

}  // namespace penstock::train
