#include "penstock/train/rank_model.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/memory/gpu_account.h"
#include "penstock/plan/cuts.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/profile/profile.h"
#include "penstock/program/program_json.h"
#include "penstock/report/plan_text.h"
#include "penstock/train/asynchronous.h"
#include "penstock/train/machine.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace {

// One layer of each kind, and the loss: enough to measure a chain by.
model::Part kinds_of(const model::Chain& chain) {
  model::Part part;
  std::set<std::string> known;
  for (int64_t i = 0; i < chain.size(); ++i) {
    const std::string kind = chain.layer(i).kind();
    if (kind.empty() || known.insert(kind).second) {
      part.layers.push_back(i);
    }
  }
  return part;
}

// More stages than layers, or cuts that are none.
void require_cuts(const config::Recipe& recipe, const model::Chain& chain) {
  const config::PlanOptions& options = recipe.plan;
  const schedule::Kind kind = options.schedule == "auto" ? schedule::Kind::OneFOneB
                                                         : schedule::parse_kind(options.schedule);
  const int64_t stages =
      options.pipeline * schedule::stages_per_rank(kind, static_cast<int32_t>(options.chunks));
  const std::vector<int32_t> first_layers = options.first_layers();
  plan::check_stages(static_cast<int32_t>(stages), static_cast<int32_t>(chain.size()));
  if (!first_layers.empty() && options.schedule != "auto") {
    plan::check_cuts(
        first_layers, static_cast<int32_t>(chain.size()), static_cast<int32_t>(stages));
  }
}

// What the other ranks need to know of the plan.
std::string spell(const plan::Outcome& result) {
  return nlohmann::json{{"schedule", result.plan.options.schedule},
                        {"cuts", result.plan.options.cuts},
                        {"step_s", result.step_s},
                        {"peak_bytes", result.peak_bytes},
                        {"program", program::program_json(result.program)}}
      .dump();
}

// The other end of spell(). What only the planning rank needs is left out.
plan::Outcome unspell(const std::string& text, const config::PlanOptions& asked) {
  const nlohmann::json json = nlohmann::json::parse(text);
  plan::Outcome result{.is_feasible = true, .plan = {.options = asked}};
  result.plan.options.schedule = json.at("schedule").get<std::string>();
  result.plan.options.cuts = json.at("cuts").get<std::string>();
  result.step_s = json.at("step_s").get<double>();
  result.peak_bytes = json.at("peak_bytes").get<std::vector<int64_t>>();
  result.program =
      program::parse_program_json(json.at("program").get<std::string>(), "the plan of rank 0");
  return result;
}

std::string broadcast(comm::Group& group, std::string text) {
  const comm::What what = [] { return std::string("the plan of the step"); };
  int64_t size = static_cast<int64_t>(text.size());
  group.broadcast(0, &size, sizeof size, what);
  text.resize(static_cast<size_t>(size));
  group.broadcast(0, text.data(), size, what);
  return text;
}

}  // namespace

plan::CostTable find_pipeline_costs(const config::Recipe& recipe,
                                    const model::Chain& chain,
                                    const device::Device& device) {
  require_cuts(recipe, chain);
  if (recipe.plan.costs.empty()) {
    return measure_pipeline(recipe, chain, device);
  }
  plan::CostTable table = plan::read_costs(recipe.plan.costs);
  require_table_of(table, chain, recipe, table_of_recipe(recipe));
  return table;
}

namespace {

// A GPU counts by stream, so there is no other account to measure on: its limit waits meanwhile.
class LimitLifted {
 public:
  explicit LimitLifted(memory::Account& account)
      : account_(account), before_(account.limit_bytes()) {
    if (before_ > 0) {
      account_.set_limit(0);
    }
  }
  // To be called where all went well: without its limit nothing may go on.
  void set_again() {
    if (before_ > 0) {
      account_.set_limit(before_);
    }
    is_set_again_ = true;
  }
  ~LimitLifted() {
    try {
      if (!is_set_again_) {
        set_again();
      }
    } catch (const std::exception& error) {
      log_warning("while a memory limit was set again: ", error.what());  // a device has failed
    }
  }
  LimitLifted(const LimitLifted&) = delete;
  LimitLifted& operator=(const LimitLifted&) = delete;

 private:
  memory::Account& account_;
  const int64_t before_;
  bool is_set_again_ = false;
};

plan::CostTable measure_without_limit(const config::Recipe& recipe,
                                      const model::Chain& chain,
                                      const device::Device& device,
                                      const CostOptions& options) {
  const int64_t held = device.account().usage().current_bytes;
  const model::Part part = kinds_of(chain);
  model::Parameters parameters(
      chain, part, compute_type(recipe.train), static_cast<uint64_t>(recipe.train.seed), device);
  const auto optimizer = optim::make_optimizer(recipe.train, parameters);
  plan::CostTable table = measure_costs(recipe, chain, parameters, *optimizer, options);
  table.held.clear();  // of the layers that were measured
  if (device.is_gpu()) {
    table.held.push_back({plan::kWorkspacesName, held});
  }
  // A table is of the whole model; a pipeline shares its update among the ranks by their
  // parameters.
  const double share =
      static_cast<double>(chain.parameter_count()) / static_cast<double>(parameters.count());
  table.step_s *= share;
  table.clear_s *= share;
  return table;
}

// The limit comes back when what was measured with is gone.
plan::CostTable measure_kinds(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const device::Device& device,
                              const CostOptions& options) {
  const memory::AccountScope scope(device.account());
  LimitLifted lifted(device.account());
  plan::CostTable table = measure_without_limit(recipe, chain, device, options);
  lifted.set_again();
  return table;
}

}  // namespace

plan::CostTable measure_pipeline(const config::Recipe& recipe,
                                 const model::Chain& chain,
                                 const device::Device& device) {
  return measure_kinds(recipe, chain, device, {.measures_halves = true});
}

plan::Request plan_request(const config::Recipe& recipe, const model::Chain& chain) {
  return {.options = recipe.plan,
          .updates = static_cast<int32_t>(most_steps_at_once(recipe)),
          .model = model_sizes(recipe, chain)};
}

program::Program plan_updates(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const RankModel& model,
                              comm::Group& group,
                              int64_t updates) {
  std::string text;
  const PatientScope patience(group);
  if (group.rank() == 0) {
    plan::Request request = plan_request(recipe, chain);
    request.updates = static_cast<int32_t>(updates);
    request.options.cuts = model.planned.result.plan.options.cuts;
    const plan::Outcome result =
        model.is_given ? plan::take_plan(
                             model.planned.result.plan, request, model.planned.costs, model.machine)
                       : plan::make_plan(request, model.planned.costs, model.machine);
    if (!result.is_feasible) {
      throw Error(ExitCode::Negative,
                  cat(updates,
                      " steps of the pipeline do not fit, though ",
                      model.planned.result.program.updates,
                      " do: ",
                      report::does_not_fit(result)));
    }
    text = program::program_json(result.program);
  }
  return program::parse_program_json(broadcast(group, std::move(text)), "the plan of rank 0");
}

namespace {

// Rank 0 measures and plans, the others get its answer.
void plan_together(const config::Recipe& recipe,
                   const model::Chain& chain,
                   const device::Device& device,
                   comm::Group& group,
                   const plan::PlanFile* given,
                   RankModel& made) {
  std::string text;
  const PatientScope patience(group);
  made.machine = given ? given->machine : probe_machine(recipe, group);
  made.is_given = given != nullptr;
  const bool has_measured = group.rank() == 0 && recipe.plan.costs.empty() && !given;
  if (group.rank() == 0) {
    made.planned.costs = given ? given->costs : find_pipeline_costs(recipe, chain, device);
    const plan::Request request = plan_request(recipe, chain);
    if (given) {
      require_table_of(made.planned.costs, chain, recipe, table_of_plan());
      made.planned.result = plan::take_plan(given->plan, request, made.planned.costs, made.machine);
    } else {
      made.planned.result = plan::make_plan(request, made.planned.costs, made.machine);
    }
    if (!made.planned.result.is_feasible) {
      throw Error(ExitCode::Negative, report::does_not_fit(made.planned.result));
    }
    made.title = report::plan_line(made.planned.result);
    log_info("plan: ", made.title);
    text = spell(made.planned.result);
  }
  text = broadcast(group, std::move(text));
  if (group.rank() > 0) {
    made.planned.result = unspell(text, recipe.plan);
  }
  if (device.is_gpu() && !recipe.run.deterministic) {
    // The algorithms of GEMMs are chosen while costs are measured, by each rank for itself. Nobody
    // goes on, and waits for a peer with run.timeout, before all have theirs.
    if (!has_measured) {
      measure_kinds(recipe, chain, device, {.only_bytes = true});
    }
    group.barrier([] { return std::string("the choice of algorithms for products"); });
  }
  if (device.is_gpu()) {
    device.account().restart_peak();  // what measuring held is no part of the rank's peak
  }
}

// The only rank measures with the parameters that it has: a GPU's pages and fragments are then those
// of the run, and a plan that its allocator cannot place is found out.
void plan_alone(const config::Recipe& recipe,
                const model::Chain& chain,
                const PlanSource& source,
                RankModel& made) {
  made.planned = source.given
                     ? take_plan(recipe, chain, *made.parameters, *made.optimizer, *source.given)
                     : plan_run(recipe, chain, *made.parameters, *made.optimizer, source.predicts);
  if (made.planned.result.step_s > 0) {
    made.predicted_peaks = made.planned.result.peak_bytes;
    made.title = report::plan_title(made.planned.costs, made.planned.result);
  }
}

// What the rank has of a model that is cut as `made.stages` says.
void build(const config::Recipe& recipe,
           const model::Chain& chain,
           const device::Device& device,
           comm::Group& group,
           RankModel& made) {
  const comm::Mesh mesh = plan::mesh_of(recipe.plan);
  const comm::Coordinates at = mesh.coordinates(group.rank());
  made.parts = run::parts_of(made.stages, mesh.pipeline);
  if (mesh.data > 1) {
    made.replicas =
        std::make_unique<run::Replicas>(group, replica_options(recipe, chain, made.machine));
  }
  made.parameters =
      std::make_unique<model::Parameters>(chain,
                                          made.parts[static_cast<size_t>(at.pipeline)],
                                          compute_type(recipe.train),
                                          static_cast<uint64_t>(recipe.train.seed),
                                          device,
                                          replication_of(recipe, chain, made.stages.cuts, at.data));
  made.optimizer = optim::make_optimizer(recipe.train, *made.parameters);
}

}  // namespace

RankModel build_rank_model(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const device::Device& device,
                           comm::Group& group,
                           const PlanSource& source) {
  RankModel made;
  if (recipe.plan.ranks() == 1) {
    made.stages = {{0}, {0, static_cast<int32_t>(chain.size())}};  // whatever the plan is
    build(recipe, chain, device, group, made);
    plan_alone(recipe, chain, source, made);
  } else {
    plan_together(recipe, chain, device, group, source.given, made);
    made.stages = {made.planned.result.schedule().rank_of, made.planned.result.cuts()};
    made.predicted_peaks = made.planned.result.peak_bytes;
    build(recipe, chain, device, group, made);
  }
  return made;
}

}  // namespace penstock::train
