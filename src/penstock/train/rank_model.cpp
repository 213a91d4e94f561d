#include "penstock/train/rank_model.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/memory/account.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/program/program_json.h"
#include "penstock/report/plan_text.h"
#include "penstock/train/machine.h"
#include "penstock/train/process_memory.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace {

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

// Rank 0 measures and plans, or takes the plan that is given; the others get its answer.
void plan_together(const config::Recipe& recipe,
                   const model::Chain& chain,
                   const device::Device& device,
                   comm::Group& group,
                   const PlanSource& source,
                   RankModel& made) {
  const PatientScope patience(group);
  made.machine = source.given ? source.given->machine : probe_machine(recipe, group);
  made.is_given = source.given != nullptr;
  if (group.rank() == 0) {
    made.planned = plan_run(recipe, chain, device, made.machine, source);
  }
  if (group.size() > 1) {
    const std::string text =
        broadcast(group, group.rank() == 0 ? spell(made.planned.result) : std::string());
    if (group.rank() > 0) {
      made.planned.result = unspell(text, recipe.plan);
    }
  }
  if (device.is_gpu() && !recipe.run.deterministic) {
    // The algorithms of GEMMs are chosen while costs are measured, by each rank for itself. Nobody
    // goes on, and waits for a peer with run.timeout, before all have theirs.
    if (group.rank() > 0) {
      measure_costs(recipe, chain, device, {.only_bytes = true});
    }
    group.barrier([] { return std::string("the choice of algorithms for GEMMs"); });
  }
  memory::current_account().restart_peak();  // what measuring held is no part of the rank's peak
  memory::release_unused();
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
        model.is_given
            ? plan::take_plan(
                  model.planned.result.plan, request, model.planned.bytes(), model.machine)
            : plan::make_plan(request, model.planned.bytes(), model.machine);
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

RankModel build_rank_model(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const device::Device& device,
                           comm::Group& group,
                           const PlanSource& source) {
  RankModel made;
  plan_together(recipe, chain, device, group, source, made);
  require_room(recipe, made.planned.result.peak_bytes, group);
  made.stages = {made.planned.result.schedule().rank_of, made.planned.result.cuts()};
  build(recipe, chain, device, group, made);
  rehearse(recipe, chain, made.machine, source, *made.parameters, made.planned);
  const plan::Outcome& result = made.planned.result;
  if (result.step_s > 0) {
    made.predicted_peaks = result.peak_bytes;
    made.title = report::plan_title(made.planned.costs, result);
  }
  return made;
}

}  // namespace penstock::train
