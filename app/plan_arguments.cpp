#include "plan_arguments.h"

#include <CLI/CLI.hpp>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/comm/local.h"
#include "penstock/program/program_file.h"
#include "penstock/train/layout.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/ranks.h"
#include "penstock/train/setup.h"

#include "arguments.h"

namespace penstock::app {

void add_plan_arguments(CLI::App& command, PlanArguments& arguments) {
  add_memory_option(
      command, arguments.memory, "the most that the device may hold, as in 600MiB (plan.memory)");
  command
      .add_option(
          "--recompute",
          arguments.recompute,
          "none, all, sqrt or rotor, for a pipeline also rotor-uniform (plan.recompute); by "
          "default rotor where there is a limit, none elsewhere")
      ->check(CLI::IsMember({"auto", "none", "all", "sqrt", "rotor", "rotor-uniform"}))
      ->type_name("HOW");
  command
      .add_option("--micro-batches",
                  arguments.micro_batches,
                  "parts in which the batch is computed (plan.micro_batches)")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000'000}))
      ->type_name("N");
  command
      .add_option(
          "--slots",
          arguments.slots,
          "memory levels that rotor tells apart; by default exact where that is affordable, "
          "and thousands elsewhere")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000'000}))
      ->type_name("N");
  command
      .add_option(
          "--pipeline", arguments.pipeline, "ranks that the layers are cut across (plan.pipeline)")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->type_name("N");
  add_text_option(command,
                  "--schedule",
                  arguments.schedule,
                  "the order in which a pipeline's ranks run their micro-batches (plan.schedule): "
                  "gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, pipedream, 2bw, pipemare, auto")
      ->type_name("NAME");
  command
      .add_option("--chunks",
                  arguments.chunks,
                  "stages that a rank has, where the schedule is interleaved (plan.chunks); 2 by "
                  "default")
      ->check(CLI::Range(int64_t{1}, int64_t{64}))
      ->type_name("N");
  add_text_option(command,
                  "--cuts",
                  arguments.cuts,
                  "the first layer of each stage after the first, as in 6,12,18 (plan.cuts)")
      ->type_name("LAYERS");
  command
      .add_option(
          "--flush-every",
          arguments.flush_every,
          "optimizer steps until an asynchronous pipeline is drained (plan.flush_every); 16 "
          "by default")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000}))
      ->type_name("N");
  add_text_option(command,
                  "--program",
                  arguments.program,
                  "write the step as a program: as text, or as JSON when the name ends in .json "
                  "(docs/program.md)")
      ->type_name("FILE");
}

void require_use_of_flush_every(int64_t flush_every, const config::PlanOptions& plan) {
  if (flush_every > 0 && !plan.is_asynchronous()) {
    throw ConfigError(cat("--flush-every is for asynchronous schedules, and \"",
                          plan.schedule,
                          "\" is drained in every step"));
  }
}

config::Recipe load_planned_recipe(const PlanArguments& arguments) {
  std::vector<std::string> settings = arguments.recipe.settings;
  if (!arguments.memory.empty()) {
    settings.push_back("plan.memory=" + arguments.memory);
  }
  if (!arguments.recompute.empty()) {
    settings.push_back("plan.recompute=" + arguments.recompute);
  }
  if (arguments.micro_batches > 0) {
    settings.push_back(cat("plan.micro_batches=", arguments.micro_batches));
  }
  if (!arguments.costs.empty()) {
    settings.push_back("plan.costs=" + arguments.costs);
  }
  if (arguments.pipeline > 0) {
    settings.push_back(cat("plan.pipeline=", arguments.pipeline));
  }
  if (!arguments.schedule.empty()) {
    settings.push_back("plan.schedule=" + arguments.schedule);
  }
  if (arguments.chunks > 0) {
    settings.push_back(cat("plan.chunks=", arguments.chunks));
  }
  if (!arguments.cuts.empty()) {
    settings.push_back("plan.cuts=" + arguments.cuts);
  }
  if (arguments.flush_every > 0) {
    settings.push_back(cat("plan.flush_every=", arguments.flush_every));
  }
  config::Recipe recipe = config::load_recipe(arguments.recipe.recipe, settings);
  require_use_of_flush_every(arguments.flush_every, recipe.plan);
  if (arguments.ranks == 0) {
    config::require_replicas(recipe.plan);
  }
  return recipe;
}

namespace {

// Without a model: everything comes from the table.
train::Planned plan_bare_costs(const PlanArguments& arguments) {
  if (!arguments.recipe.settings.empty()) {
    throw ConfigError("--set changes a recipe; with --costs alone there is none");
  }
  if (!arguments.schedule.empty() || arguments.chunks > 0 || !arguments.cuts.empty() ||
      arguments.flush_every > 0 || arguments.recompute == "rotor-uniform") {
    throw ConfigError(
        "--schedule, --chunks, --cuts, --flush-every and --recompute rotor-uniform are for a "
        "pipeline; say of how many ranks with --pipeline");
  }
  const int64_t limit = parse_bytes(arguments.memory).value_or(0);  // 0: none was given
  const std::string how = arguments.recompute.empty() ? "auto" : arguments.recompute;
  train::Planned planned{plan::read_costs(arguments.costs), {}};
  planned.result = plan::make_plan(
      planned.costs,
      {.recompute = plan::parse_recompute(how, limit > 0),
       .limit_bytes = limit,
       .micro_batches = static_cast<int32_t>(std::max<int64_t>(1, arguments.micro_batches)),
       .rotor = {.slots = arguments.slots}});
  return planned;
}

}  // namespace

train::Planned make_plan(const PlanArguments& arguments) {
  if (arguments.recipe.recipe.empty()) {
    if (arguments.costs.empty()) {
      throw ConfigError("name a recipe, or a cost table with --costs");
    }
    return plan_bare_costs(arguments);
  }
  const config::Recipe recipe = load_planned_recipe(arguments);
  train::prepare_process(recipe);
  return train::plan_recipe(recipe, {.slots = arguments.slots});
}

bool asks_for_pipeline(const PlanArguments& arguments) {
  return arguments.pipeline > 1 || arguments.ranks > 1 ||
         (!arguments.recipe.recipe.empty() && load_planned_recipe(arguments).plan.ranks() > 1);
}

namespace {

// Plans every layout that the ranks allow, and fills in the best.
std::vector<report::LayoutRow> choose_layout(config::Recipe& recipe,
                                             const device::Device& device,
                                             const model::Chain& chain,
                                             int64_t ranks) {
  plan::LinkCost line;
  comm::run_local(static_cast<int32_t>(ranks), [&](comm::Group& group) {
    const plan::LinkCost found = train::probe_line(group);
    if (group.rank() == 0) {
      line = found;
    }
  });
  const std::vector<train::LayoutPlan> plans =
      train::plan_layouts(recipe, chain, device, ranks, line);
  if (!plans.front().why_not.empty()) {
    throw ConfigError(
        report::no_layout_fits(train::layout_rows(plans), recipe.plan.memory_bytes()));
  }
  recipe = train::with_layout(recipe, plans.front().layout);
  return train::layout_rows(plans);
}

// What a recipe would say, for a bare cost table.
config::PlanOptions plan_options(const PlanArguments& arguments) {
  config::Recipe recipe;
  recipe.plan.pipeline = arguments.pipeline;
  recipe.plan.micro_batches = std::max<int64_t>(1, arguments.micro_batches);
  recipe.plan.memory = arguments.memory;
  recipe.plan.cuts = arguments.cuts;
  recipe.plan.recompute = arguments.recompute.empty() ? "auto" : arguments.recompute;
  recipe.plan.schedule = arguments.schedule.empty() ? "auto" : arguments.schedule;
  recipe.plan.chunks = arguments.chunks > 0 ? arguments.chunks : recipe.plan.chunks;
  recipe.plan.flush_every =
      arguments.flush_every > 0 ? arguments.flush_every : recipe.plan.flush_every;
  recipe.train.batch = recipe.plan.micro_batches;
  if (recipe.plan.is_asynchronous()) {  // a table has no clipping and says itself who shares what
    recipe.train.clip = 0;
    recipe.model.tied = false;
  }
  config::validate(recipe);
  require_use_of_flush_every(arguments.flush_every, recipe.plan);
  return recipe.plan;
}

}  // namespace

PlannedPipeline make_pipeline_plan(const PlanArguments& arguments) {
  if (arguments.slots > 0) {
    throw ConfigError("--slots is for one rank: a pipeline's memory is planned in exact bytes");
  }
  if (arguments.recipe.recipe.empty()) {
    if (arguments.costs.empty()) {
      throw ConfigError("name a recipe, or a cost table with --costs");
    }
    if (!arguments.recipe.settings.empty()) {
      throw ConfigError("--set changes a recipe; with --costs alone there is none");
    }
    if (arguments.ranks > 0) {
      throw ConfigError(
          "--ranks chooses a layout for a recipe; with --costs alone there is none: say "
          "--pipeline");
    }
    const config::PlanOptions options = plan_options(arguments);
    PlannedPipeline planned{.costs = plan::read_costs(arguments.costs),
                            .limit_bytes = options.memory_bytes()};
    planned.result = plan::plan_pipeline(planned.costs, train::pipeline_request(options));
    return planned;
  }
  config::Recipe recipe = load_planned_recipe(arguments);
  const int64_t ranks = arguments.ranks > 0 ? arguments.ranks : recipe.plan.ranks();
  train::prepare_process(recipe, ranks);
  const device::Device device = train::open_device(recipe);
  const model::Chain chain = train::make_chain(recipe.model, device);
  std::vector<report::LayoutRow> layouts;
  if (train::leaves_layout_open(recipe.plan, ranks)) {
    layouts = choose_layout(recipe, device, chain, ranks);
  } else {
    train::require_ranks(recipe.plan, ranks, "--ranks says");
  }
  PlannedPipeline planned{.costs = train::find_pipeline_costs(recipe, chain, device),
                          .limit_bytes = recipe.plan.memory_bytes()};
  planned.result = train::plan_pipeline(recipe, chain, planned.costs);
  planned.layouts = std::move(layouts);
  return planned;
}

void write_program_file(const PlanArguments& arguments, const program::Program& program) {
  if (!arguments.program.empty()) {
    program::write_program(arguments.program, program);
    log_info("wrote ", arguments.program);
  }
}

}  // namespace penstock::app
