#include "penstock/train/trainer_validation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/comm/group.h"
#include "penstock/data/batch.h"
#include "penstock/data/dataset.h"
#include "penstock/plan/evaluation.h"
#include "penstock/program/program_json.h"
#include "penstock/program/verify.h"
#include "penstock/run/executor.h"
#include "penstock/train/batch_tensors.h"
#include "penstock/train/diverged.h"
#include "penstock/train/rank_sums.h"
#include "penstock/train/reporter.h"
#include "penstock/train/setup.h"
#include "penstock/train/trainer_parts.h"

namespace penstock::train {

namespace {

// The mean over the first `sequences` of the dataset.
double mean_loss(TrainerParts& parts,
                 run::Executor& evaluator,
                 const data::Dataset& dataset,
                 int64_t sequences) {
  const int64_t at_once = parts.recipe.micro_batch_size();
  const int64_t batches = (sequences + at_once - 1) / at_once;
  const int64_t replicas = parts.mesh.data;
  const int32_t stage = parts.mesh.coordinate(parts.group.rank(), comm::Axis::Pipeline);
  const model::Part& here = parts.model.parts[static_cast<size_t>(stage)];
  const std::vector<std::string> fields = parts.chain.edges().fields_of(here.layers, here.has_loss);
  run::LossSum total;
  // The replicas take a batch each at the same time. Where some are left over they repeat the last,
  // for weights may have to be gathered by all, and it does not count.
  for (int64_t round = 0; round < batches; round += replicas) {
    const int64_t number = round + parts.parameters.replica();
    const int64_t first = std::min(number, batches - 1) * at_once;
    const int64_t count = std::min(at_once, sequences - first);
    const data::Batch batch =
        fields.empty() ? data::Batch{} : data::read_in_order(dataset, first, count, fields);
    parts.read_bytes += batch.read_bytes;
    run::LossSum part = evaluator.evaluate(as_tensors(batch), count, field_shapes(dataset));
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

program::Program plan_evaluation(const RankModel& model, comm::Group& group) {
  const comm::What what = [] { return std::string("the plan of the validation"); };
  std::string text;
  if (group.rank() == 0) {
    text = program::program_json(
        plan::write_evaluation(model.planned.result.program, model.planned.costs));
  }
  int64_t size = static_cast<int64_t>(text.size());
  group.broadcast(0, &size, sizeof size, what);
  text.resize(static_cast<size_t>(size));
  group.broadcast(0, text.data(), size, what);
  program::Program evaluation = program::parse_program_json(text, "the plan of rank 0");
  if (const program::Verdict verdict = program::verify(evaluation); !verdict.is_sound()) {
    throw Error(ExitCode::Negative,
                cat("the step fits, and the validation does not: ",
                    verdict.violation->text,
                    "; try a little more plan.memory"));
  }
  return evaluation;
}

std::optional<double> validate(TrainerParts& parts) {
  if (!parts.split.validation) {
    return std::nullopt;
  }
  parts.executor.release_graph();
  const data::Dataset& dataset = *parts.split.validation;
  const int64_t sequences = std::min(parts.recipe.run.validate_sequences, dataset.samples());
  const double loss = mean_loss(parts, *parts.evaluation.executor, dataset, sequences);
  if (!std::isfinite(loss)) {
    fail_diverged("validation loss", parts.state.step, parts.recipe.train);
  }
  if (parts.reporter) {
    parts.reporter->show_validation(parts.state.step, loss, sequences);
  }
  return loss;
}

}  // namespace penstock::train
