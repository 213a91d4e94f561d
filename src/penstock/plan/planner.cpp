#include "penstock/plan/planner.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/comm/collectives.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/plan/sharding.h"
#include "penstock/plan/stage_use.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"

namespace penstock::plan {

namespace {

Ground ground_of(const Request& request, const CostTable& costs, const Machine& machine) {
  return {costs, request.model, machine};
}

// Fills in the options that the layout and the machine alone decide.
config::PlanOptions settle(config::PlanOptions options, const Machine& machine) {
  if (options.data == 1) {
    options.shard = "none";
  }
  if (options.pipeline == 1) {
    options.schedule = schedule::kind_name(schedule::Kind::OneFOneB);
  }
  if (options.collectives == "auto" && !machine.collectives) {
    options.collectives = comm::algorithm_name(collective_algorithm(options, machine)(0));
  }
  return options;
}

SlotMode slot_mode(const config::PlanOptions& options) {
  if (options.recompute == "rotor-uniform") {
    return SlotMode::Uniform;
  }
  const bool recomputes =
      options.recompute == "rotor" || (options.recompute == "auto" && options.memory_bytes() > 0);
  return recomputes ? SlotMode::Apart : SlotMode::KeepAll;
}

const char* mode_name(SlotMode mode) {
  switch (mode) {
    case SlotMode::KeepAll:
      return "none";
    case SlotMode::Uniform:
      return "rotor-uniform";
    case SlotMode::Apart:
      return "rotor";
  }
  throw InternalError("no such mode of slots");
}

PipelineRequest pipeline_request(const Request& request,
                                 const CostTable& costs,
                                 const Machine& machine,
                                 Spent& spent) {
  const config::PlanOptions& options = request.options;
  PipelineRequest made{.ranks = static_cast<int32_t>(options.pipeline),
                       .micro_batches = static_cast<int32_t>(options.micro_batches),
                       .chunks = static_cast<int32_t>(options.chunks),
                       .updates = request.updates,
                       .first_layers = options.first_layers(),
                       .mode = slot_mode(options),
                       .limit_bytes = machine.tensor_limit(options.memory_bytes()),
                       .link = machine.along(mesh_of(options), comm::Axis::Pipeline),
                       .spent = &spent};
  if (options.pipeline == 1) {
    made.kind = schedule::Kind::OneFOneB;
  } else if (options.schedule != "auto") {
    made.kind = schedule::parse_kind(options.schedule);
  }
  if (request.model.is_known()) {
    made.holdings = [&](const Pipeline& pipeline) {
      return stage_holdings(options, request.model, pipeline, costs, machine);
    };
    made.weight_bytes = [&](const Pipeline& pipeline) {
      return copy_bytes_by_stage(request.model, pipeline, machine);
    };
  }
  return made;
}

std::string binding_at(const program::Program& program, size_t rank, int32_t instruction) {
  return instruction < 0
             ? "weights, state and inputs"
             : describe(program,
                        program.ranks[rank].instructions[static_cast<size_t>(instruction)]);
}

// Proves the outcome's program, and takes seconds and bytes from it. Returns what is unsound about
// it, or nothing.
std::string measure_program(Outcome& outcome) {
  const SpentScope scope(&outcome.spent, "verify and simulate");
  const program::Verdict verdict = program::verify(outcome.program);
  if (!verdict.is_sound()) {
    return verdict.violation->text;
  }
  outcome.peak_bytes.clear();
  outcome.binding.clear();
  for (size_t rank = 0; rank < outcome.program.ranks.size(); ++rank) {
    outcome.peak_bytes.push_back(verdict.peaks[rank].bytes);
    outcome.binding.push_back(binding_at(outcome.program, rank, verdict.peaks[rank].instruction));
  }
  const program::Timeline timeline = program::simulate(outcome.program);
  outcome.step_s = timeline.seconds / outcome.program.updates;
  outcome.bubble = idle_share(timeline);
  const SentBytes sent = count_sent(outcome.program);
  outcome.sent_bytes = sent.all;
  outcome.gathered_again_bytes = sent.gathered_again;
  return "";
}

// What is kept gathered depends on what else the rank has: the cuts come first, as if there were no
// limit. Returns the rank of each layer and of the loss.
std::vector<int32_t> fix_cuts(const CostTable& costs, PipelineRequest& request) {
  PipelineRequest free = request;
  free.limit_bytes = 0;
  free.mode = SlotMode::KeepAll;
  const PipelineAnswer cut = solve_pipeline(costs, free);
  const std::vector<int32_t>& cuts = cut.pipeline.cuts;
  request.kind = cut.kind;
  request.first_layers.assign(cuts.begin() + 1, cuts.end() - 1);
  std::vector<int32_t> rank_of;
  for (size_t stage = 0; stage < cut.pipeline.schedule.rank_of.size(); ++stage) {
    rank_of.resize(static_cast<size_t>(cuts[stage + 1]), cut.pipeline.schedule.rank_of[stage]);
  }
  rank_of.push_back(rank_of.back());
  return rank_of;
}

// Replicas: a pipeline is planned with what sharding adds to each layer.
PipelineAnswer solve_replicas(const Request& request,
                              const CostTable& costs,
                              const Machine& machine,
                              PipelineRequest pipeline) {
  PENSTOCK_CHECK(request.model.is_known(), "replicas of a model whose parameters are not known");
  // The cuts are not known yet. They bound only units of whole gradients (plan.bucket), which add
  // nothing to a layer.
  const Sharding sharding = sharding_of(
      request.options, request.model, {0, static_cast<int32_t>(costs.layers.size())}, machine);
  std::vector<int32_t> rank_of;
  if (sharding.keeps_gathered && pipeline.ranks > 1) {
    rank_of = fix_cuts(costs, pipeline);
  }
  return solve_pipeline(with_sharding(costs, sharding, rank_of), pipeline);
}

// Of one update: an asynchronous pipeline does the same in each.
std::vector<std::vector<StageOperations>> of_one_update(
    std::vector<std::vector<StageOperations>> operations, int64_t micro_batches) {
  for (std::vector<StageOperations>& stage : operations) {
    stage.resize(static_cast<size_t>(micro_batches));
  }
  return operations;
}

Outcome plan_ranks(const Request& request, const CostTable& costs, const Machine& machine) {
  Outcome outcome;
  const PipelineRequest pipeline = pipeline_request(request, costs, machine, outcome.spent);
  PipelineAnswer answer = request.options.data == 1
                              ? solve_pipeline(costs, pipeline)
                              : solve_replicas(request, costs, machine, pipeline);
  outcome.is_feasible = answer.is_feasible;
  outcome.plan.options = settle(request.options, machine);
  outcome.plan.options.schedule = schedule::kind_name(answer.kind);
  outcome.plan.options.cuts = cuts_text(answer.pipeline.cuts);
  outcome.plan.options.recompute = mode_name(slot_mode(request.options));
  outcome.plan.operations =
      of_one_update(std::move(answer.pipeline.operations), request.options.micro_batches);
  outcome.recomputed_forwards = answer.recomputed_forwards;
  outcome.runners_up = std::move(answer.runners_up);
  if (request.options.data == 1) {  // the solver has lowered and proved it
    outcome.program = std::move(answer.program);
    outcome.step_s = answer.step_s;
    outcome.bubble = answer.bubble;
    outcome.peak_bytes = std::move(answer.peak_bytes);
    outcome.least_bytes = std::move(answer.least_bytes);
    outcome.binding = std::move(answer.binding);
    return outcome;
  }
  // The solver saw stages with bounds of what sharding adds, and no updates: the program decides.
  outcome.program = lower_plan(outcome.plan,
                               ground_of(request, costs, machine),
                               /*updates=*/1,
                               /*limit_bytes=*/0,
                               &outcome.spent);
  const std::string fault = measure_program(outcome);
  PENSTOCK_CHECK(fault.empty(), "an unsound program: ", fault);
  const int64_t limit = machine.tensor_limit(outcome.limit_bytes());
  outcome.is_feasible = limit == 0 || outcome.most_peak_bytes() <= limit;
  for (size_t rank = 0; rank < outcome.peak_bytes.size(); ++rank) {
    const auto stage = static_cast<size_t>(outcome.program.stage_of(static_cast<int32_t>(rank)));
    outcome.least_bytes.push_back(
        outcome.is_feasible ? outcome.peak_bytes[rank]
                            : std::max(outcome.peak_bytes[rank], answer.least_bytes[stage]));
    outcome.program.ranks[rank].limit_bytes = outcome.is_feasible ? limit : 0;
  }
  return outcome;
}

// Before the loss and from it on.
StageOperations split_at_loss(const Operations& operations) {
  const auto loss =
      std::find_if(operations.begin(), operations.end(), [](const Operation& operation) {
        return operation.kind == OperationKind::Loss;
      });
  return {{operations.begin(), loss}, {loss, operations.end()}};
}

Outcome plan_one(const Request& request, const CostTable& costs, const Machine& machine) {
  Outcome outcome;
  const config::PlanOptions& options = request.options;
  OneRankRequest one{.recompute = parse_recompute(options.recompute, options.memory_bytes() > 0),
                     .limit_bytes = machine.tensor_limit(options.memory_bytes()),
                     .micro_batches = static_cast<int32_t>(options.micro_batches),
                     .rotor = request.rotor,
                     .spent = &outcome.spent};
  if (request.model.is_known()) {
    one.holdings = whole_holdings(request.model, costs, machine);
  }
  OneRankAnswer answer;
  {
    const SpentScope scope(&outcome.spent, "one rank");
    answer = solve_one_rank(costs, one);
  }
  outcome.is_feasible = answer.is_feasible;
  outcome.plan.options = settle(options, machine);
  outcome.plan.options.recompute = recompute_name(one.recompute);
  outcome.plan.operations = {
      {static_cast<size_t>(options.micro_batches), split_at_loss(answer.plan.operations)}};
  outcome.program = std::move(answer.program);
  outcome.step_s = answer.step_s;
  outcome.peak_bytes = {answer.peak_bytes};
  outcome.least_bytes = {answer.least_bytes};
  outcome.binding = {std::move(answer.binding)};
  outcome.recomputed_forwards = recomputed_forwards(costs, answer.plan.operations);
  outcome.unlimited_s = answer.unlimited_s;
  outcome.unlimited_bytes = answer.unlimited_bytes;
  outcome.slots = answer.slots;
  return outcome;
}

// Of limits, which bound pages, too.
void add_spare(const Machine& machine, Outcome& outcome) {
  for (int64_t& bytes : outcome.least_bytes) {
    bytes += machine.spare_page_bytes;
  }
}

// Of all micro-batches of an update; where one rank does the same in each, of one.
int64_t count_recomputed(const Plan& plan, const std::vector<int32_t>& cuts) {
  int64_t count = 0;
  for (size_t stage = 0; stage < plan.operations.size(); ++stage) {
    for (const StageOperations& one : plan.operations[stage]) {
      count += recomputed_forwards(cuts, static_cast<int32_t>(stage), one);
      if (plan.mesh().ranks() == 1) {
        break;
      }
    }
  }
  return count;
}

}  // namespace

int64_t Outcome::most_peak_bytes() const {
  return *std::max_element(peak_bytes.begin(), peak_bytes.end());
}

int64_t Outcome::most_least_bytes() const {
  return *std::max_element(least_bytes.begin(), least_bytes.end());
}

Outcome make_plan(const Request& request, const CostTable& costs, const Machine& machine) {
  Outcome outcome = request.options.ranks() == 1 ? plan_one(request, costs, machine)
                                                 : plan_ranks(request, costs, machine);
  add_spare(machine, outcome);
  return outcome;
}

Outcome take_plan(const Plan& plan,
                  const Request& request,
                  const CostTable& costs,
                  const Machine& machine) {
  Outcome outcome{.is_feasible = true, .plan = plan};
  // Without a limit: that one that was edited by hand does not fit is no unsoundness.
  outcome.program = lower_plan(
      plan, ground_of(request, costs, machine), request.updates, /*limit_bytes=*/0, &outcome.spent);
  if (const std::string fault = measure_program(outcome); !fault.empty()) {
    throw ConfigError(cat("the plan's program is unsound: ", fault));
  }
  outcome.least_bytes = outcome.peak_bytes;
  const int64_t limit = machine.tensor_limit(outcome.limit_bytes());
  for (program::RankProgram& rank : outcome.program.ranks) {
    rank.limit_bytes = limit;
  }
  outcome.is_feasible = limit == 0 || outcome.most_peak_bytes() <= limit;
  add_spare(machine, outcome);
  outcome.recomputed_forwards = request.updates * count_recomputed(plan, outcome.cuts());
  if (plan.mesh().ranks() == 1) {
    outcome.unlimited_s =
        costs.clear_s + costs.step_s +
        static_cast<double>(plan.options.micro_batches) * seconds_of(costs, keep_everything(costs));
  }
  return outcome;
}

}  // namespace penstock::plan
