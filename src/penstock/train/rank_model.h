// What one rank of a run has of the model: the parameters of its layers, their optimizer, and the
// plan of the step. A run of one rank is the ordinary case, with all layers.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/machine.h"
#include "penstock/plan/plan_file.h"
#include "penstock/plan/planner.h"
#include "penstock/run/replicas.h"
#include "penstock/run/stages.h"
#include "penstock/train/planning.h"

namespace penstock::train {

// While it lives, ranks wait an hour for each other: measuring, planning and reading data on the
// first take their time, which is no sign that it is stuck.
class PatientScope {
 public:
  explicit PatientScope(comm::Group& group) : group_(group), before_(group.timeout()) {
    group.set_timeout(std::max(before_, 3600.0));
  }
  ~PatientScope() { group_.set_timeout(before_); }
  PatientScope(const PatientScope&) = delete;
  PatientScope& operator=(const PatientScope&) = delete;

 private:
  comm::Group& group_;
  double before_;
};

struct RankModel {
  run::Stages stages;
  std::vector<model::Part> parts;  // of every stage of the mesh
  std::unique_ptr<model::Parameters> parameters;
  // Nothing: there are none. Goes before the parameters that its thread works on.
  std::unique_ptr<run::Replicas> replicas;
  std::unique_ptr<optim::Optimizer> optimizer;
  plan::Machine machine;                 // that was planned for
  Planned planned;                       // the program of all ranks
  bool is_given = false;                 // the plan was made before: nothing is decided again
  std::vector<int64_t> predicted_peaks;  // of each rank; empty: not predicted
  std::string title;                     // the plan in a line; empty: not predicted
};

// All ranks call it: rank 0 measures and plans, or takes the plan that is given, and the others get
// its answer. Throws Error (exit code 1) when the step does not fit.
RankModel build_rank_model(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const device::Device& device,
                           comm::Group& group,
                           const PlanSource& source);

// The program of `updates` steps of the model's asynchronous pipeline, cut as it is. All ranks call
// it.
program::Program plan_updates(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const RankModel& model,
                              comm::Group& group,
                              int64_t updates);

}  // namespace penstock::train
