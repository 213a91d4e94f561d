#include "penstock/train/planning.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/plan/cuts.h"
#include "penstock/plan/lower_plan.h"
#include "penstock/program/verify.h"
#include "penstock/report/plan_text.h"
#include "penstock/run/executor.h"
#include "penstock/train/asynchronous.h"
#include "penstock/train/machine.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace {

// More stages than layers, or cuts that are none.
void require_cuts(const config::Recipe& recipe, const model::Chain& chain) {
  const config::PlanOptions& options = recipe.plan;
  if (options.pipeline == 1) {
    return;
  }
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

struct Field {
  std::string owner;
  const char* name;
  int64_t said, found;
};

// The sizes that an operation of a plan rests on, as the table has them and as they were measured.
std::vector<Field> fields_behind(const plan::Operation& operation,
                                 const plan::CostTable& table,
                                 const plan::CostTable& model) {
  if (operation.kind == plan::OperationKind::Loss) {
    const plan::LayerCost& last = table.layers.back();
    return {{"the loss", "extra_bytes", table.loss.extra_bytes, model.loss.extra_bytes},
            {last.name,
             "output_gradient_bytes",
             last.output_gradient(),
             model.layers.back().output_gradient()}};
  }
  const plan::LayerCost& said = table.layers[static_cast<size_t>(operation.layer)];
  const plan::LayerCost& found = model.layers[static_cast<size_t>(operation.layer)];
  if (operation.kind != plan::OperationKind::ForwardAll) {
    return {
        {said.name, "dropping_extra_bytes", said.forward_extra_bytes, found.forward_extra_bytes}};
  }
  const plan::SaveModeCost& a = said.modes[static_cast<size_t>(operation.mode)];
  const plan::SaveModeCost& b = found.modes[static_cast<size_t>(operation.mode)];
  const std::string owner = cat(said.name, ", save mode ", a.name, ",");
  std::vector<Field> fields = {
      {said.name, "input_gradient_bytes", said.input_gradient(), found.input_gradient()},
      {owner, "saved_bytes", a.saved_bytes, b.saved_bytes},
      {owner, "forward_extra_bytes", a.forward_extra_bytes, b.forward_extra_bytes},
      {owner, "backward_extra_bytes", a.backward_extra_bytes, b.backward_extra_bytes},
      {owner, "recompute_extra_bytes", a.recompute_extra_bytes, b.recompute_extra_bytes}};
  if (found.weight_state_bytes >= 0) {  // backward was measured as input and weight gradient, too
    fields.push_back(
        {said.name, "weight_state_bytes", said.weight_work_bytes(), found.weight_work_bytes()});
    fields.push_back(
        {said.name, "weight_extra_bytes", said.weight_extra_bytes, found.weight_extra_bytes});
    fields.push_back({owner,
                      "backward_input_extra_bytes",
                      said.input_gradient_extra_bytes(a),
                      found.input_gradient_extra_bytes(b)});
  }
  return fields;
}

// The first size, in the order of the plan, that the table promises too small.
std::string first_understatement(const plan::CostTable& table,
                                 const plan::CostTable& model,
                                 const plan::Plan& plan) {
  std::vector<Field> fields{
      {table.layers.front().name, "input_bytes", table.input_bytes(), model.input_bytes()},
      {"the table", "step_extra_bytes", table.step_extra_bytes, model.step_extra_bytes}};
  const auto add = [&](const plan::Operations& operations) {
    for (const plan::Operation& operation : operations) {
      const std::vector<Field> more = fields_behind(operation, table, model);
      fields.insert(fields.end(), more.begin(), more.end());
    }
  };
  for (const std::vector<plan::StageOperations>& stage : plan.operations) {
    for (const plan::StageOperations& one : stage) {
      add(one.forward);
      add(one.backward);
    }
  }
  for (const Field& field : fields) {
    if (field.found > field.said) {
      return cat(field.owner,
                 " has ",
                 field.name,
                 " = ",
                 format_count(field.said),
                 ", measured ",
                 format_count(field.found));
    }
  }
  return "its sizes are not the model's";
}

// Seconds from the table, bytes as measured.
plan::CostTable with_bytes(plan::CostTable table, const plan::CostTable& measured) {
  for (size_t i = 0; i < table.layers.size(); ++i) {
    plan::LayerCost& layer = table.layers[i];
    const plan::LayerCost& found = measured.layers[i];
    layer.forward_extra_bytes = found.forward_extra_bytes;
    layer.input_bytes = found.input_bytes;
    layer.input_gradient_bytes = found.input_gradient_bytes;
    layer.output_gradient_bytes = found.output_gradient_bytes;
    const bool has_split = found.weight_state_bytes >= 0;
    if (has_split) {
      layer.weight_state_bytes = found.weight_state_bytes;
      layer.weight_extra_bytes = found.weight_extra_bytes;
    }
    for (size_t k = 0; k < layer.modes.size(); ++k) {
      plan::SaveModeCost& mode = layer.modes[k];
      mode.saved_bytes = found.modes[k].saved_bytes;
      mode.forward_extra_bytes = found.modes[k].forward_extra_bytes;
      mode.backward_extra_bytes = found.modes[k].backward_extra_bytes;
      if (has_split) {
        mode.backward_input_extra_bytes = found.modes[k].backward_input_extra_bytes;
      }
      mode.recompute_extra_bytes = found.modes[k].recompute_extra_bytes;
    }
  }
  table.loss.extra_bytes = measured.loss.extra_bytes;
  table.step_extra_bytes = measured.step_extra_bytes;
  return table;
}

// A plan that rests on a table from a file is proved once more with the bytes that the layers really
// need. The plan stays; only its program is written again. Throws Error (exit code 1) with the
// numbers when it breaks the limit then.
void prove_with(const plan::CostTable& measured,
                const TableOrigin& origin,
                const plan::Request& request,
                const plan::Machine& machine,
                Planned& planned) {
  plan::Outcome& result = planned.result;
  planned.proved = with_bytes(planned.costs, measured);
  program::Program program =
      plan::lower_plan(result.plan,
                       {.costs = *planned.proved, .model = request.model, .machine = machine},
                       request.updates,
                       /*limit_bytes=*/0);
  const int64_t limit = machine.tensor_limit(result.limit_bytes());
  std::vector<int64_t> peaks;
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    peaks.push_back(program::replay_peak(program.ranks[rank]).bytes);
    if (limit > 0 && peaks[rank] > limit) {
      throw Error(ExitCode::Negative,
                  cat(origin.name,
                      " promises a peak of ",
                      format_count(result.peak_bytes[rank]),
                      " bytes",
                      program.ranks.size() > 1 ? cat(" on rank ", rank) : "",
                      ", but with the bytes measured here the same plan needs ",
                      format_count(peaks[rank]),
                      ", over the limit of ",
                      format_count(limit),
                      ": ",
                      first_understatement(planned.costs, measured, result.plan),
                      "; ",
                      origin.remedy));
    }
    program.ranks[rank].limit_bytes = limit;
  }
  result.program = std::move(program);
  result.peak_bytes = std::move(peaks);
}

bool needs_seconds(const config::Recipe& recipe, const PlanSource& source) {
  return recipe.plan.ranks() > 1 || recipe.plan.memory_bytes() > 0 || source.predicts;
}

std::optional<TableOrigin> origin_of(const config::Recipe& recipe, const PlanSource& source) {
  if (source.given != nullptr) {
    return table_of_plan();
  }
  return recipe.plan.costs.empty() ? std::nullopt : std::optional(table_of_recipe(recipe));
}

// Else costs are those of shapes.
bool has_seconds(const config::Recipe& recipe, const PlanSource& source) {
  return origin_of(recipe, source) || needs_seconds(recipe, source);
}

plan::CostTable find_costs(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const device::Device& device,
                           const PlanSource& source) {
  if (source.given != nullptr) {
    return source.given->costs;
  }
  if (!recipe.plan.costs.empty()) {
    return plan::read_costs(recipe.plan.costs);
  }
  return needs_seconds(recipe, source) ? measure_costs(recipe,
                                                       chain,
                                                       device,
                                                       {.is_quick = source.is_quick,
                                                        .measures_split = recipe.plan.ranks() > 1})
                                       : costs_of_shapes(recipe, chain, device);
}

}  // namespace

plan::Request plan_request(const config::Recipe& recipe, const model::Chain& chain) {
  return {.options = recipe.plan,
          .updates = static_cast<int32_t>(most_steps_at_once(recipe)),
          .model = model_sizes(recipe, chain)};
}

plan::CostTable find_pipeline_costs(const config::Recipe& recipe,
                                    const model::Chain& chain,
                                    const device::Device& device) {
  require_cuts(recipe, chain);
  const PlanSource source{.predicts = true};
  plan::CostTable table = find_costs(recipe, chain, device, source);
  if (const std::optional<TableOrigin> origin = origin_of(recipe, source)) {
    require_table_of(table, chain, recipe, *origin);
  }
  return table;
}

Planned find_plan(const config::Recipe& recipe,
                  const model::Chain& chain,
                  const device::Device& device,
                  const plan::Machine& machine,
                  const PlanSource& source) {
  require_cuts(recipe, chain);
  Planned planned{.costs = find_costs(recipe, chain, device, source)};
  const std::optional<TableOrigin> origin = origin_of(recipe, source);
  std::optional<plan::CostTable> measured;
  if (origin) {
    require_table_of(planned.costs, chain, recipe, *origin);
  }
  if (origin && source.proves) {
    measured = measure_costs(
        recipe, chain, device, {.only_bytes = true, .measures_split = recipe.plan.ranks() > 1});
    planned.costs.target_bytes = measured->target_bytes;
    planned.costs.held = measured->held;
  }
  plan::Request request = plan_request(recipe, chain);
  request.rotor = source.rotor;
  if (!has_seconds(recipe, source) && request.options.recompute == "rotor") {
    request.options.recompute = "none";  // its answer where there is no limit
  }
  planned.result = source.given != nullptr
                       ? plan::take_plan(source.given->plan, request, planned.costs, machine)
                       : plan::make_plan(request, planned.costs, machine);
  if (measured && planned.result.is_feasible) {
    prove_with(*measured, *origin, request, machine, planned);
  }
  return planned;
}

Planned plan_run(const config::Recipe& recipe,
                 const model::Chain& chain,
                 const device::Device& device,
                 const plan::Machine& machine,
                 const PlanSource& source) {
  Planned planned = find_plan(recipe, chain, device, machine, source);
  if (device.is_gpu() && !has_seconds(recipe, source)) {
    // Its seconds are of no use here, but it chooses the algorithms of GEMMs.
    measure_costs(recipe, chain, device, {.only_bytes = true});
  }
  if (!planned.result.is_feasible) {
    throw Error(ExitCode::Negative, report::does_not_fit(planned.result));
  }
  if (planned.result.step_s > 0) {
    log_info("plan: ", report::plan_line(planned.result));
  }
  return planned;
}

namespace {

// Whether a step runs within the account's limit; the limit is in force only where training is
// about to begin. Leaves the weights alone, and rubbish in the gradients.
bool can_be_placed(const program::Program& program,
                   const model::Chain& chain,
                   model::Parameters& parameters,
                   const config::Recipe& recipe) {
  run::Executor executor(program, chain, parameters);
  run::NoStepper stepper;
  try {
    executor.run(
        {.batch = chain.example(recipe.train.batch), .micro_batches = recipe.plan.micro_batches},
        stepper);
    return true;
  } catch (const run::OverLimit&) {
    return false;
  }
}

}  // namespace

void rehearse(const config::Recipe& recipe,
              const model::Chain& chain,
              const plan::Machine& machine,
              const PlanSource& source,
              model::Parameters& parameters,
              Planned& planned) {
  if (!parameters.device().is_gpu() || memory::current_account().limit_bytes() == 0 ||
      recipe.plan.ranks() > 1) {
    return;
  }
  const int64_t limit = recipe.plan.memory_bytes();
  constexpr int kTries = 5;
  plan::Request request = plan_request(recipe, chain);
  for (int tries = 1; !can_be_placed(planned.result.program, chain, parameters, recipe); ++tries) {
    const int64_t peak = planned.result.most_peak_bytes();
    request.options.memory = cat(limit - tries * (limit / 50));
    if (tries < kTries && source.given == nullptr) {
      planned.result = plan::make_plan(request, planned.bytes(), machine);
    }
    if (tries == kTries || source.given != nullptr || !planned.result.is_feasible) {
      throw Error(ExitCode::Negative,
                  cat("the GPU's allocator cannot place a step of ",
                      format_bytes(peak),
                      " within plan.memory = ",
                      recipe.plan.memory,
                      ", for free memory is fragmented; try ",
                      source.given ? "a plan that was made with a smaller --memory"
                                   : "a little more, or more plan.micro_batches"));
    }
    log_info("the allocator cannot place a step of ",
             format_bytes(peak),
             "; planning one of ",
             format_bytes(planned.result.most_peak_bytes()));
  }
  planned.result.plan.options.memory = recipe.plan.memory;
  planned.result.program.ranks.front().limit_bytes = machine.tensor_limit(limit);
  memory::current_account().restart_peak();  // of plans that could not be placed
}

Planned plan_recipe(const config::Recipe& recipe,
                    const plan::RotorOptions& rotor,
                    const Subject& subject) {
  const device::Device device = open_device(recipe);
  return find_plan(recipe,
                   subject.make_chain(recipe, device),
                   device,
                   find_machine(recipe),
                   {.predicts = true, .rotor = rotor});
}

plan::CostTable measure_recipe(const config::Recipe& recipe) {
  const device::Device device = open_device(recipe);
  const model::Chain chain = family_subject().make_chain(recipe, device);
  plan::CostTable table = measure_costs(
      recipe, chain, device, {.measures_split = recipe.plan.ranks() > 1 || !device.is_gpu()});
  if (recipe.plan.ranks() > 1) {
    config::Recipe measured = recipe;
    measured.plan.costs.clear();  // it is about to be written
    table.link = probe_machine(measured, recipe.plan.ranks()).within_node;
  }
  return table;
}

std::vector<plan::Remedy> find_remedies(const config::Recipe& recipe, const Subject& subject) {
  std::vector<plan::Remedy> remedies;
  const auto consider = [&](const std::string& change, config::Recipe changed) {
    changed.plan.costs.clear();  // a table is of the recipe as it was
    const device::Device device = open_device(changed);
    const plan::Outcome result = find_plan(changed,
                                           subject.make_chain(changed, device),
                                           device,
                                           find_machine(changed),
                                           {.predicts = true, .is_quick = true})
                                     .result;
    remedies.push_back({change, result.most_least_bytes(), result.is_feasible, result.step_s});
  };
  const int64_t doubled = 2 * recipe.plan.micro_batches;
  if (recipe.train.batch % doubled == 0) {
    config::Recipe changed = recipe;
    changed.plan.micro_batches = doubled;
    consider(cat("plan.micro_batches = ", doubled), changed);
  }
  if (recipe.train.precision == "float32" || recipe.train.precision == "tf32") {
    config::Recipe changed = recipe;
    changed.train.precision = "bfloat16";
    consider("train.precision = \"bfloat16\"", changed);
  }
  if (plan::parse_recompute(recipe.plan.recompute, /*has_limit=*/true) != plan::Recompute::Rotor) {
    config::Recipe changed = recipe;
    changed.plan.recompute = "rotor";
    consider("plan.recompute = \"rotor\"", changed);
  }
  return remedies;
}

}  // namespace penstock::train
