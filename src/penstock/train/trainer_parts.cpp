#include "penstock/train/trainer_parts.h"

#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/run_lock.h"
#include "penstock/comm/group.h"
#include "penstock/data/loader.h"
#include "penstock/plan/shard.h"
#include "penstock/train/mesh.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/reporter.h"
#include "penstock/train/setup.h"
#include "penstock/train/trainer_validation.h"

namespace penstock::train {

namespace {

// The first rank before the others: it may write what they then find, and that may take its time.
data::Split open_in_turn(const config::Recipe& recipe, comm::Group& group) {
  const comm::What what = [] { return std::string("the data"); };
  const PatientScope patience(group);
  if (group.rank() > 0) {
    group.barrier(what);
    return open_data(recipe);
  }
  data::Split split = open_data(recipe);
  group.barrier(what);
  return split;
}

}  // namespace

TrainerParts::TrainerParts(const config::Recipe& asked, comm::Group& ranks, bool predicts)
    : recipe(asked),
      mesh(mesh_of(recipe.plan)),
      group(ranks),
      device(open_device(recipe, group)),
      account(device.is_gpu() ? device.account() : memory::current_account()),
      limit(memory::current_account(), recipe.plan.memory_bytes()),
      seed(static_cast<uint64_t>(recipe.train.seed)),
      split(open_in_turn(recipe, group)),
      chain(make_chain(recipe.model, device)),
      model(build_rank_model(recipe, chain, device, group, predicts)),
      parameters(*model.parameters),
      optimizer(*model.optimizer),
      executor(model.planned.result.program, chain, parameters, group, model.replicas.get()) {
  if (split.validation) {
    evaluation.program = plan_evaluation(model, group);
    evaluation.executor = std::make_unique<run::Executor>(evaluation.program, executor);
  }
  if (recipe.train.precision == "float16") {
    scaler.emplace(optim::loss_scale_options(recipe.train));
  }
  if (uses_graph(recipe)) {
    executor.use_graph();
  }
}

TrainerParts::~TrainerParts() = default;

bool TrainerParts::reduces_gradients() const {
  return !model.replicas || optimizer.wants_reduced_gradients();
}

run::Executor& TrainerParts::executor_of(int64_t updates) {
  if (!reduces_gradients()) {
    if (!unreduced.executor) {
      unreduced.program = plan::without_reduces(model.planned.result.program,
                                                shared_bytes(parameters.inventory().sizes));
      unreduced.executor = std::make_unique<run::Executor>(
          unreduced.program, chain, parameters, group, model.replicas.get());
    }
    return *unreduced.executor;
  }
  if (updates == model.planned.result.program.updates) {
    return executor;
  }
  Variant& made = shorter[updates];
  if (!made.executor) {
    made.program = plan_updates(recipe, chain, model, group, updates);
    made.executor = std::make_unique<run::Executor>(made.program, chain, parameters, group);
  }
  return *made.executor;
}

const StepRecords& TrainerParts::steady_records() const {
  return unreduced_records.last().empty() ? records : unreduced_records;
}

const program::Program& TrainerParts::steady_program() const {
  const program::Program& whole = model.planned.result.program;
  const StepRecords& steady = steady_records();
  if (steady.updates_of_last() != whole.updates) {
    return shorter.at(steady.updates_of_last()).program;
  }
  return &steady == &records ? whole : unreduced.program;
}

std::unique_ptr<TrainerParts> make_trainer_parts(const config::Recipe& recipe,
                                                 comm::Group& group,
                                                 bool predicts) {
  try {
    std::unique_ptr<checkpoint::RunLock> lock;
    if (group.rank() == 0) {
      lock = std::make_unique<checkpoint::RunLock>(recipe.run.out);
    }
    auto parts = memory::refuse_over_limit(
        [&] { return std::make_unique<TrainerParts>(recipe, group, predicts); });
    parts->lock = std::move(lock);
    return parts;
  } catch (const memory::LimitError& error) {
    throw Error(ExitCode::Negative,
                cat("does not fit: ",
                    error.what(),
                    " before the first step; penstock plan says what would fit"));
  }
}

}  // namespace penstock::train
