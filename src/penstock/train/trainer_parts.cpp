#include "penstock/train/trainer_parts.h"

#include <string>
#include <tuple>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/run_lock.h"
#include "penstock/checkpoint/together.h"
#include "penstock/comm/group.h"
#include "penstock/data/loader.h"
#include "penstock/plan/lower_plan.h"
#include "penstock/plan/plan.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/reporter.h"
#include "penstock/train/setup.h"
#include "penstock/train/trainer_validation.h"

namespace penstock::train {

namespace {

// The first rank before the others: it may write what they then find, and that may take its time.
data::Split open_in_turn(const config::Recipe& recipe, comm::Group& group, const Subject& subject) {
  const comm::What what = [] { return std::string("the data"); };
  const PatientScope patience(group);
  if (group.rank() > 0) {
    group.barrier(what);
    return subject.open_data(recipe);
  }
  data::Split split = subject.open_data(recipe);
  group.barrier(what);
  return split;
}

// What is wrong with the data is found before the first step. Each rank looks through its share.
int64_t check_share(const data::Split& split, comm::Group& group) {
  int64_t bytes = 0;
  const PatientScope patience(group);
  checkpoint::run_together(
      group,
      [] { return std::string("a look through the data"); },
      [&] {
        for (const data::DatasetPtr& dataset : {split.train, split.validation}) {
          bytes += dataset ? dataset->check(group.rank(), group.size()) : 0;
        }
      });
  return bytes;
}

// What a chain of modules brings with it, its first weights, is gone before the first step: it is
// counted apart.
model::Chain make_aside(const Subject& subject,
                        const config::Recipe& recipe,
                        const device::Device& device) {
  if (device.is_gpu()) {
    return subject.make_chain(recipe, device);
  }
  const memory::AccountScope aside(memory::make_account());
  return subject.make_chain(recipe, device);
}

}  // namespace

TrainerParts::TrainerParts(const config::Recipe& asked,
                           comm::Group& ranks,
                           const PlanSource& source,
                           const Subject& subject)
    : recipe(asked),
      mesh(plan::mesh_of(recipe.plan)),
      group(ranks),
      device(open_device(recipe, group)),
      account(device.is_gpu() ? device.account() : memory::current_account()),
      limit(memory::current_account(), recipe.plan.memory_bytes()),
      seed(static_cast<uint64_t>(recipe.train.seed)),
      is_own(subject.is_own),
      split(open_in_turn(recipe, group, subject)),
      read_bytes(check_share(split, group)),
      chain(make_aside(subject, recipe, device)),
      model(build_rank_model(recipe, chain, device, group, source)),
      parameters(*model.parameters),
      optimizer(*model.optimizer),
      executor(model.planned.result.program, chain, parameters, group, model.replicas.get()) {
  chain.forget_initial();
  if (split.validation) {
    evaluation.own_program = std::make_unique<program::Program>(plan_evaluation(model, group));
    evaluation.program = evaluation.own_program.get();
    evaluation.own_executor = std::make_unique<run::Executor>(*evaluation.program, executor);
    evaluation.executor = evaluation.own_executor.get();
  }
  if (recipe.train.precision == "float16") {
    scaler.emplace(optim::loss_scale_options(recipe.train));
  }
  if (uses_graph(recipe, chain)) {
    executor.use_graph();
  }
}

TrainerParts::~TrainerParts() = default;

TrainerParts::Variant& TrainerParts::next_variant(int64_t updates) {
  const bool is_planned = updates == model.planned.result.program.updates;
  const plan::UpdateForm form = optimizer.next_form();
  Variant& next = variants[{updates, form}];
  const plan::ModelSizes sizes = model_sizes(recipe, chain);
  if (!next.executor && is_planned && form == sizes.first_form) {
    next.program = &model.planned.result.program;
    next.executor = &executor;
  }
  if (!next.executor) {
    next.own_program = std::make_unique<program::Program>(
        is_planned ? plan::with_form(model.planned.result.program,
                                     model.planned.result.plan,
                                     sizes,
                                     model.machine,
                                     form)
                   : plan_updates(recipe, chain, model, group, updates));
    next.program = next.own_program.get();
    next.own_executor = std::make_unique<run::Executor>(
        *next.program, chain, parameters, group, model.replicas.get());
    next.executor = next.own_executor.get();
  }
  return next;
}

const TrainerParts::Variant* TrainerParts::steady_variant() const {
  const Variant* steady = nullptr;
  const auto rank_of = [](const Variant& one, const std::pair<int64_t, plan::UpdateForm>& key) {
    return std::tuple{key.first, !key.second.reduces, one.records.count()};
  };
  std::tuple<int64_t, bool, size_t> best;
  for (const auto& [key, variant] : variants) {
    if (!variant.records.last().empty() && (steady == nullptr || rank_of(variant, key) > best)) {
      steady = &variant;
      best = rank_of(variant, key);
    }
  }
  return steady;
}

std::unique_ptr<TrainerParts> make_trainer_parts(const config::Recipe& recipe,
                                                 comm::Group& group,
                                                 const PlanSource& source,
                                                 const Subject& subject,
                                                 std::unique_ptr<checkpoint::RunLock> lock) {
  try {
    auto parts = memory::refuse_over_limit(
        [&] { return std::make_unique<TrainerParts>(recipe, group, source, subject); });
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
