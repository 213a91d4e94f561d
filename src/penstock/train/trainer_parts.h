// What a rank holds during training, in the order in which it is made. For the trainer's own files:
// trainer_*.cpp are what it does with these parts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "penstock/checkpoint/checkpoint.h"
#include "penstock/comm/mesh.h"
#include "penstock/config/recipe.h"
#include "penstock/data/dataset.h"
#include "penstock/device/device.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/loss_scale.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/exchanges.h"
#include "penstock/program/program.h"
#include "penstock/run/executor.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/step_records.h"
#include "penstock/train/subject.h"

namespace penstock::checkpoint {
class RunLock;
}
namespace penstock::comm {
class Group;
}
namespace penstock::data {
class Loader;
}

namespace penstock::train {

class Reporter;

struct TrainerParts {
  // The limit comes first and covers everything; of one rank measuring, too.
  TrainerParts(const config::Recipe& asked,
               comm::Group& ranks,
               const PlanSource& source,
               const Subject& subject);
  ~TrainerParts();

  // A program of some steps, and what they took: the plan's, or one that is made when it is needed
  // first. They differ in what replicas exchange, and in how many steps of an asynchronous pipeline
  // run at once; all hold the same from step to step.
  struct Variant {
    const program::Program* program = nullptr;
    run::Executor* executor = nullptr;
    std::unique_ptr<program::Program> own_program;
    std::unique_ptr<run::Executor> own_executor;
    StepRecords records;
  };
  // What takes the next steps, this many at once.
  Variant& next_variant(int64_t updates);
  // Of the steps that a run of many ends up with. Nothing: there were none.
  const Variant* steady_variant() const;

  config::Recipe recipe;
  comm::Mesh mesh;
  comm::Group& group;
  device::Device device;
  memory::AccountScope account;
  memory::LimitScope limit;
  uint64_t seed;
  std::unique_ptr<checkpoint::RunLock> lock;  // rank 0 has it
  bool is_own;                                // a chain of the user's: see Subject
  data::Split split;
  int64_t read_bytes = 0;  // of files: all but what the loader reads
  model::Chain chain;
  RankModel model;
  model::Parameters& parameters;
  optim::Optimizer& optimizer;
  std::optional<optim::LossScaler> scaler;  // float16 alone has one
  run::Executor executor;
  std::map<std::pair<int64_t, plan::UpdateForm>, Variant> variants;  // by steps at once, and form
  Variant evaluation;  // of a micro-batch; nothing where nothing is held out
  checkpoint::TrainState state;
  std::unique_ptr<data::Loader> loader;  // nothing: this rank's layers read nothing of the batch
  std::unique_ptr<Reporter> reporter;    // rank 0 has it
};

// All ranks call it, rank 0 with the lock of the run's folder. The loader and the reporter are left to the caller: they begin where the state
// does. Throws Error (exit code 1) when the parts or the step do not fit in the recipe's limit.
std::unique_ptr<TrainerParts> make_trainer_parts(const config::Recipe& recipe,
                                                 comm::Group& group,
                                                 const PlanSource& source,
                                                 const Subject& subject,
                                                 std::unique_ptr<checkpoint::RunLock> lock);

}  // namespace penstock::train
