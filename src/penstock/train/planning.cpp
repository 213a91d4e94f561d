#include "penstock/train/planning.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/memory/gpu_account.h"
#include "penstock/plan/lower_plan.h"
#include "penstock/profile/profile.h"
#include "penstock/program/verify.h"
#include "penstock/report/plan_text.h"
#include "penstock/report/progress.h"
#include "penstock/run/executor.h"
#include "penstock/train/machine.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace {

std::string describe(const config::Recipe& recipe) {
  return cat(recipe.model.family,
             ", ",
             recipe.model.layers,
             " layers, width ",
             recipe.model.width,
             ", micro-batches of ",
             recipe.micro_batch_size(),
             " x ",
             recipe.model.context,
             ", dropout ",
             recipe.model.dropout,
             ", ",
             recipe.train.precision,
             ", ",
             recipe.run.device == "cuda"
                 ? std::string("one GPU")
                 : cat(at::get_num_threads(), at::get_num_threads() == 1 ? " thread" : " threads"));
}

plan::Holdings find_holdings(const config::Recipe& recipe, const model::Parameters& parameters) {
  return holdings_alone(recipe, parameters, memory::usage().current_bytes);
}

// For people, and for plans from the table alone.
std::vector<program::Held> sums_of(const plan::Holdings& holdings) {
  program::RankProgram rank;
  for (const plan::HeldValue& one : holdings.ranks.front().values) {
    rank.hold(one.value, one.label);
  }
  return program::held_by_name(rank);
}

// Optimizer state per layer, in the proportion of its parameters.
void share_optimizer_state(plan::CostTable& table, const optim::Optimizer& optimizer) {
  const int64_t copies = std::count_if(
      optimizer.state().begin(), optimizer.state().end(), [](const optim::StateBuffer& buffer) {
        return !buffer.is_per_parameter;
      });
  for (plan::LayerCost& layer : table.layers) {
    layer.optimizer_bytes = copies * layer.parameter_bytes;
  }
  table.loss.optimizer_bytes = copies * table.loss.parameter_bytes;
}

// What the optimizer's step did to its fresh state is undone: it saw no gradients, but SGD takes in
// weight decay.
void forget_steps(optim::Optimizer& optimizer) {
  optimizer.set_steps_done(0);
  for (const optim::StateBuffer& state : optimizer.state()) {
    at::Tensor(state.flat).zero_();
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
    return {{"the loss", "extra_bytes", table.loss.extra_bytes, model.loss.extra_bytes}};
  }
  const plan::LayerCost& said = table.layers[static_cast<size_t>(operation.layer)];
  const plan::LayerCost& found = model.layers[static_cast<size_t>(operation.layer)];
  if (operation.kind != plan::OperationKind::ForwardAll) {
    return {
        {said.name, "dropping_extra_bytes", said.forward_extra_bytes, found.forward_extra_bytes}};
  }
  const plan::KeepCost& a = said.ways[static_cast<size_t>(operation.way)];
  const plan::KeepCost& b = found.ways[static_cast<size_t>(operation.way)];
  const std::string owner = cat(said.name, ", way ", a.name, ",");
  return {{owner, "saved_bytes", a.saved_bytes, b.saved_bytes},
          {owner, "forward_extra_bytes", a.forward_extra_bytes, b.forward_extra_bytes},
          {owner, "backward_extra_bytes", a.backward_extra_bytes, b.backward_extra_bytes},
          {owner, "recompute_extra_bytes", a.recompute_extra_bytes, b.recompute_extra_bytes}};
}

// The first size, in the order of the plan, that the table promises too small.
std::string first_understatement(const plan::CostTable& table,
                                 const plan::CostTable& model,
                                 const plan::Operations& operations) {
  std::vector<Field> fields{
      {table.layers.front().name, "input_bytes", table.input_bytes(), model.input_bytes()},
      {"the table", "step_extra_bytes", table.step_extra_bytes, model.step_extra_bytes}};
  for (const plan::Operation& operation : operations) {
    const std::vector<Field> more = fields_behind(operation, table, model);
    fields.insert(fields.end(), more.begin(), more.end());
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

// The plan stays; only its program is written again with the bytes of `measured`.
void prove_with(const plan::CostTable& measured,
                const TableOrigin& origin,
                const plan::CostTable& table,
                const std::optional<plan::Holdings>& holdings,
                plan::Outcome& result) {
  // Seconds from the table, bytes as measured.
  plan::CostTable honest = table;
  for (size_t i = 0; i < honest.layers.size(); ++i) {
    plan::LayerCost& layer = honest.layers[i];
    const plan::LayerCost& found = measured.layers[i];
    layer.forward_extra_bytes = found.forward_extra_bytes;
    layer.input_bytes = found.input_bytes;
    for (size_t k = 0; k < layer.ways.size(); ++k) {
      plan::KeepCost& way = layer.ways[k];
      way.saved_bytes = found.ways[k].saved_bytes;
      way.forward_extra_bytes = found.ways[k].forward_extra_bytes;
      way.backward_extra_bytes = found.ways[k].backward_extra_bytes;
      way.recompute_extra_bytes = found.ways[k].recompute_extra_bytes;
    }
  }
  honest.loss.extra_bytes = measured.loss.extra_bytes;
  honest.step_extra_bytes = measured.step_extra_bytes;
  program::Program program =
      plan::lower_plan(result.plan,
                       {.costs = honest, .model = {}, .machine = {}, .holdings = holdings},
                       /*updates=*/1,
                       /*limit_bytes=*/0);
  const int64_t limit = result.limit_bytes();
  const int64_t peak = program::replay_peak(program.ranks.front()).bytes;
  if (limit > 0 && peak > limit) {
    throw Error(ExitCode::Negative,
                cat(origin.name,
                    " promises a peak of ",
                    format_count(result.most_peak_bytes()),
                    " bytes, but with the bytes measured here the same plan needs ",
                    format_count(peak),
                    ", over the limit of ",
                    format_count(limit),
                    ": ",
                    first_understatement(table, measured, result.plan.one_rank_operations()),
                    "; ",
                    origin.remedy));
  }
  program.ranks.front().limit_bytes = limit;
  result.program = std::move(program);
  result.peak_bytes = {peak};
}

// [inputs and targets, samples, tokens]
at::Tensor random_micro_batch(const config::Recipe& recipe) {
  const int64_t samples = recipe.micro_batch_size();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1);
  return at::randint(
      recipe.model.vocabulary, {2, samples, recipe.model.context}, generator, at::kLong);
}

struct Built {
  explicit Built(const config::Recipe& recipe)
      : device(open_device(recipe)),
        chain(make_chain(recipe.model, device)),
        parameters(
            chain, compute_type(recipe.train), static_cast<uint64_t>(recipe.train.seed), device),
        optimizer(optim::make_optimizer(recipe.train, parameters)) {}

  device::Device device;
  model::Chain chain;
  model::Parameters parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
};

}  // namespace

TableOrigin table_of_recipe(const config::Recipe& recipe) {
  return {cat("plan.costs = ", recipe.plan.costs), "measure again with penstock profile"};
}

TableOrigin table_of_plan() {
  return {"the plan's costs.table", "plan again with penstock plan --out"};
}

void require_table_of(const plan::CostTable& table,
                      const model::Chain& chain,
                      const config::Recipe& recipe,
                      const TableOrigin& origin) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(cat(origin.name, " ", what, "; ", origin.remedy));
  };
  if (static_cast<int64_t>(table.layers.size()) != chain.size()) {
    refuse(cat("has ", table.layers.size(), " layers, the model has ", chain.size()));
  }
  const std::vector<model::TensorShape> shapes = chain.shapes_for(
      {{recipe.micro_batch_size(), recipe.model.context}, at::kLong}, compute_type(recipe.train));
  for (int64_t i = 0; i < chain.size(); ++i) {
    const model::Layer& layer = chain.layer(i);
    const plan::LayerCost& cost = table.layers[static_cast<size_t>(i)];
    const int64_t tensor_bytes = shapes[static_cast<size_t>(i) + 1].bytes();
    const int64_t output_bytes =
        recipe.run.device == "cuda" ? memory::gpu_block_bytes(tensor_bytes) : tensor_bytes;
    const auto same_way = [](const plan::KeepCost& a, const model::Way& b) {
      return a.name == b.name && a.needs_output == b.needs_output;
    };
    if (cost.output_bytes != output_bytes || !std::equal(cost.ways.begin(),
                                                         cost.ways.end(),
                                                         layer.ways().begin(),
                                                         layer.ways().end(),
                                                         same_way)) {
      refuse(cat("does not fit the model: layer ",
                 i,
                 " (",
                 cost.name,
                 ", ",
                 format_count(cost.output_bytes),
                 " bytes out) is not ",
                 layer.name(),
                 " (",
                 format_count(output_bytes),
                 " bytes out) or has other save modes"));
    }
  }
}

plan::CostTable measure_costs(const config::Recipe& recipe,
                              const model::Chain& chain,
                              model::Parameters& parameters,
                              optim::Optimizer& optimizer,
                              const CostOptions& options) {
  PENSTOCK_CHECK(optimizer.steps_done() == 0, "costs are measured before training begins");
  const std::vector<program::Held> held = sums_of(find_holdings(recipe, parameters));
  const at::Tensor tokens = random_micro_batch(recipe);

  profile::ProfileOptions profiling{.only_bytes = options.only_bytes,
                                    .measures_halves = options.measures_halves};
  profiling.step = [&] {
    parameters.add_shares();
    optimizer.update(parameters, {.rate = {.lr = 0}, .clip = recipe.train.clip});
  };
  if (options.is_quick) {
    profiling.least_rounds = 3;
    profiling.most_rounds = 5;
  }
  std::optional<report::Progress> progress;
  if (options.shows_progress && !options.only_bytes) {
    progress.emplace(report::ProgressOptions{
        .title = "measure", .total = profiling.most_rounds, .plain_every = profiling.most_rounds});
    profiling.on_round = [&](int done, int) { progress->update(done, {}); };
  }
  plan::CostTable table = profile::measure(chain, parameters, tokens[0], tokens[1], profiling);
  if (progress) {
    progress->finish();
  }
  forget_steps(optimizer);
  table.held = held;
  table.description = describe(recipe);
  share_optimizer_state(table, optimizer);
  return table;
}

namespace {

// The recipe's cost table where it names one, else measured. Parameters, optimizer state and
// whatever else is held now count either way.
plan::CostTable find_costs(const config::Recipe& recipe,
                           const model::Chain& chain,
                           model::Parameters& parameters,
                           optim::Optimizer& optimizer) {
  if (recipe.plan.costs.empty()) {
    return measure_costs(recipe, chain, parameters, optimizer);
  }
  plan::CostTable table = plan::read_costs(recipe.plan.costs);
  table.held = sums_of(find_holdings(recipe, parameters));
  return table;
}

plan::Request plan_request(const config::Recipe& recipe,
                           std::optional<plan::Holdings> holdings,
                           const plan::RotorOptions& rotor = {}) {
  return {.options = recipe.plan, .rotor = rotor, .holdings = std::move(holdings)};
}

}  // namespace

namespace {

// Whether a step runs within the account's limit; the limit is in force only where training is
// about to begin. Leaves the weights alone, and rubbish in the gradients.
bool can_be_placed(const program::Program& program,
                   const model::Chain& chain,
                   model::Parameters& parameters,
                   const config::Recipe& recipe) {
  if (!parameters.device().is_gpu() || memory::current_account().limit_bytes() == 0) {
    return true;
  }
  const at::Tensor tokens = at::randint(
      recipe.model.vocabulary, {2, recipe.train.batch, recipe.model.context}, at::kLong);
  run::Executor executor(program, chain, parameters);
  run::NoStepper stepper;
  try {
    executor.run(
        {.inputs = tokens[0], .targets = tokens[1], .micro_batches = recipe.plan.micro_batches},
        stepper);
    return true;
  } catch (const run::OverLimit&) {
    return false;
  }
}

}  // namespace

Planned make_plan(const config::Recipe& recipe,
                  const model::Chain& chain,
                  model::Parameters& parameters,
                  optim::Optimizer& optimizer,
                  const plan::RotorOptions& rotor) {
  Planned planned{find_costs(recipe, chain, parameters, optimizer), {}};
  const TableOrigin origin = table_of_recipe(recipe);
  std::optional<plan::CostTable> measured;
  if (!recipe.plan.costs.empty()) {
    measured = measure_costs(recipe, chain, parameters, optimizer, {.only_bytes = true});
    require_table_of(planned.costs, chain, recipe, origin);
    planned.costs.target_bytes = measured->target_bytes;
  }
  plan::Request request = plan_request(recipe, find_holdings(recipe, parameters), rotor);
  const plan::Machine machine = find_machine(recipe);
  const auto solve = [&] {
    planned.result = plan::make_plan(request, planned.costs, machine);
    if (measured && planned.result.is_feasible) {
      prove_with(*measured, origin, planned.costs, request.holdings, planned.result);
    }
    return planned.result.is_feasible;
  };
  // A GPU's memory can be free and yet fragmented. Where the allocator cannot place a plan, one that
  // uses a little less is tried.
  const int64_t limit = recipe.plan.memory_bytes();
  constexpr int kTries = 5;
  bool fits = solve();
  for (int tries = 1; fits && !can_be_placed(planned.result.program, chain, parameters, recipe);
       ++tries) {
    const int64_t peak = planned.result.most_peak_bytes();
    request.options.memory = cat(limit - tries * (limit / 50));
    fits = tries < kTries && solve();
    if (!fits) {
      throw Error(ExitCode::Negative,
                  cat("the GPU's allocator cannot place a step of ",
                      format_bytes(peak),
                      " within plan.memory = ",
                      recipe.plan.memory,
                      ", for free memory is fragmented; try a little more, or more "
                      "plan.micro_batches"));
    }
    log_info("the allocator cannot place a step of ",
             format_bytes(peak),
             "; planning one of ",
             format_bytes(planned.result.most_peak_bytes()));
  }
  if (fits) {
    planned.result.plan.options.memory = recipe.plan.memory;
    planned.result.program.ranks.front().limit_bytes = limit;
  }
  return planned;
}

namespace {

// Without measuring, so without seconds.
Planned plan_from_sizes(const config::Recipe& recipe,
                        const model::Chain& chain,
                        const model::Parameters& parameters) {
  const plan::Holdings holdings = find_holdings(recipe, parameters);
  const at::Tensor tokens = random_micro_batch(recipe);
  Planned planned{profile::sizes_of(chain, parameters, tokens[0], tokens[1]), {}};
  planned.costs.held = sums_of(holdings);
  planned.costs.description = describe(recipe);
  PENSTOCK_CHECK(recipe.plan.memory_bytes() == 0, "a limit needs measured costs");
  plan::Request request = plan_request(recipe, holdings);
  if (request.options.recompute == "rotor") {
    request.options.recompute = "none";  // its answer where there is no limit
  }
  planned.result = plan::make_plan(request, planned.costs, find_machine(recipe));
  return planned;
}

}  // namespace

Planned plan_run(const config::Recipe& recipe,
                 const model::Chain& chain,
                 model::Parameters& parameters,
                 optim::Optimizer& optimizer,
                 bool predicts) {
  const bool needs_costs = predicts || recipe.plan.memory_bytes() > 0 || !recipe.plan.costs.empty();
  if (!needs_costs) {
    if (parameters.device().is_gpu()) {
      // Its seconds are of no use here, but it chooses the algorithms.
      measure_costs(recipe, chain, parameters, optimizer, {.only_bytes = true});
    }
    return plan_from_sizes(recipe, chain, parameters);
  }
  Planned planned = make_plan(recipe, chain, parameters, optimizer);
  if (!planned.result.is_feasible) {
    throw Error(ExitCode::Negative, report::does_not_fit(planned.result));
  }
  log_info("plan: ", report::plan_line(planned.result));
  return planned;
}

Planned take_plan(const config::Recipe& recipe,
                  const model::Chain& chain,
                  model::Parameters& parameters,
                  optim::Optimizer& optimizer,
                  const plan::PlanFile& given) {
  Planned planned{given.costs, {}};
  const plan::CostTable measured =
      measure_costs(recipe, chain, parameters, optimizer, {.only_bytes = true});
  require_table_of(planned.costs, chain, recipe, table_of_plan());
  planned.costs.target_bytes = measured.target_bytes;
  const plan::Request request = plan_request(recipe, find_holdings(recipe, parameters));
  planned.result = plan::take_plan(given.plan, request, planned.costs, given.machine);
  planned.result.unlimited_s =
      planned.costs.clear_s + planned.costs.step_s +
      static_cast<double>(recipe.plan.micro_batches) *
          plan::seconds_of(planned.costs, plan::keep_everything(planned.costs));
  if (!planned.result.is_feasible) {
    throw Error(ExitCode::Negative, report::does_not_fit(planned.result));
  }
  prove_with(measured, table_of_plan(), planned.costs, request.holdings, planned.result);
  if (!can_be_placed(planned.result.program, chain, parameters, recipe)) {
    throw Error(ExitCode::Negative,
                cat("the GPU's allocator cannot place a step of ",
                    format_bytes(planned.result.most_peak_bytes()),
                    " within the plan's plan.memory = ",
                    recipe.plan.memory,
                    ", for free memory is fragmented; plan again with a smaller --memory"));
  }
  log_info("plan: ", report::plan_line(planned.result));
  return planned;
}

Planned plan_recipe(const config::Recipe& recipe, const plan::RotorOptions& rotor) {
  Built built(recipe);
  return make_plan(recipe, built.chain, built.parameters, *built.optimizer, rotor);
}

plan::CostTable measure_recipe(const config::Recipe& recipe) {
  if (recipe.plan.ranks() > 1) {
    const device::Device device = open_device(recipe);
    plan::CostTable table = measure_pipeline(recipe, make_chain(recipe.model, device), device);
    config::Recipe measured = recipe;
    measured.plan.costs.clear();  // it is about to be written
    table.link = probe_machine(measured, recipe.plan.ranks()).within_node;
    return table;
  }
  Built built(recipe);
  return measure_costs(recipe,
                       built.chain,
                       built.parameters,
                       *built.optimizer,
                       {.measures_halves = !built.device.is_gpu()});
}

std::vector<plan::Remedy> find_remedies(const config::Recipe& recipe) {
  std::vector<plan::Remedy> remedies;
  const auto consider = [&](const std::string& change, const config::Recipe& changed) {
    Built built(changed);
    const plan::CostTable costs =
        measure_costs(changed, built.chain, built.parameters, *built.optimizer, {.is_quick = true});
    const plan::Outcome result =
        plan::make_plan(plan_request(changed, find_holdings(changed, built.parameters)),
                        costs,
                        find_machine(changed));
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
