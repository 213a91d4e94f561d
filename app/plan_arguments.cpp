#include "plan_arguments.h"

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/text.h"
#include "penstock/program/program_file.h"
#include "penstock/train/layout.h"
#include "penstock/train/machine.h"
#include "penstock/train/planning.h"
#include "penstock/train/ranks.h"
#include "penstock/train/setup.h"

#include "arguments.h"

namespace penstock::app {

void add_plan_arguments(Command& command, PlanArguments& arguments) {
  add_plan_flags(command, arguments.flags);
  command
      .add("--slots",
           arguments.slots,
           "memory levels that rotor tells apart; by default exact where that is affordable, "
           "and thousands elsewhere")
      .in_range(int64_t{1}, int64_t{10'000'000})
      .named("N");
  command
      .add("--program",
           arguments.program,
           "write the step as a program: as text, or as JSON when the name ends in .json "
           "(docs/program.md)")
      .named("FILE")
      .not_empty();
}

config::Recipe load_planned_recipe(const PlanArguments& arguments) {
  std::vector<std::string> settings = arguments.recipe.settings;
  const std::vector<std::string> flags = arguments.flags.settings();
  settings.insert(settings.end(), flags.begin(), flags.end());
  config::Recipe recipe = config::load_recipe(arguments.recipe.recipe, settings);
  require_use_of_flush_every(arguments.flags, recipe.plan);
  if (arguments.ranks == 0) {
    config::require_replicas(recipe.plan);
  }
  return recipe;
}

void require_no_slots(const PlanArguments& arguments) {
  if (arguments.slots > 0) {
    throw ConfigError("--slots is for one rank: a pipeline's memory is planned in exact bytes");
  }
}

namespace {

// What a recipe would say, for a bare cost table.
config::Recipe bare_recipe(const PlanArguments& arguments) {
  if (!arguments.flags.has("plan.costs")) {
    throw ConfigError("name a recipe, or a cost table with --costs");
  }
  if (!arguments.recipe.settings.empty()) {
    throw ConfigError("--set changes a recipe; with --costs alone there is none");
  }
  if (arguments.ranks > 0) {
    throw ConfigError(
        "--ranks chooses a layout for a recipe; with --costs alone there is none: say --pipeline");
  }
  config::Recipe recipe;
  recipe.plan = arguments.flags.options();
  if (recipe.plan.data > 1) {
    throw ConfigError(
        "--data is for a recipe: a cost table does not say which parameters replicas would share");
  }
  const PlanFlags& flags = arguments.flags;
  const bool is_for_pipeline = flags.has("plan.schedule") || flags.has("plan.chunks") ||
                               flags.has("plan.cuts") || flags.has("plan.flush_every") ||
                               recipe.plan.recompute == "rotor-uniform";
  if (recipe.plan.pipeline == 1 && is_for_pipeline) {
    throw ConfigError(
        "--schedule, --chunks, --cuts, --flush-every and --recompute rotor-uniform are for a "
        "pipeline; say of how many ranks with --pipeline");
  }
  recipe.train.batch = recipe.plan.micro_batches;
  if (recipe.plan.is_asynchronous()) {  // a table has no clipping and says itself who shares what
    recipe.train.clip = 0;
    recipe.model.tied = false;
  }
  config::validate(recipe);
  require_use_of_flush_every(flags, recipe.plan);
  return recipe;
}

PlannedStep plan_bare_costs(const PlanArguments& arguments) {
  PlannedStep planned{.recipe = bare_recipe(arguments)};
  const config::PlanOptions& options = planned.recipe.plan;
  if (options.ranks() > 1) {
    require_no_slots(arguments);
  }
  planned.costs = plan::read_costs(options.costs);
  planned.machine.within_node = planned.machine.between_nodes = planned.costs.link;
  planned.result = plan::make_plan(
      {.options = options,
       .rotor = {.slots = arguments.slots},
       .updates =
           static_cast<int32_t>(options.is_asynchronous() ? options.flush_every : int64_t{1})},
      planned.costs,
      planned.machine);
  return planned;
}

}  // namespace

PlannedStep make_plan(const PlanArguments& arguments) {
  if (!arguments.has_recipe()) {
    return plan_bare_costs(arguments);
  }
  config::Recipe recipe = load_planned_recipe(arguments);
  const int64_t ranks = arguments.ranks > 0 ? arguments.ranks : recipe.plan.ranks();
  if (ranks > 1 || recipe.plan.ranks() > 1) {
    require_no_slots(arguments);
  }
  train::prepare_process(recipe, ranks);
  return train::plan_ranks(recipe, ranks, {.slots = arguments.slots});
}

void write_program_file(const PlanArguments& arguments, const program::Program& program) {
  if (!arguments.program.empty()) {
    program::write_program(arguments.program, program);
    log_info("wrote ", arguments.program);
  }
}

}  // namespace penstock::app
