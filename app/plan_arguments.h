// What plan, simulate and check have in common: a recipe or a bare cost table, a limit, a kind of
// recomputation.
#pragma once

#include <string>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/plan/pipeline_planner.h"
#include "penstock/plan/planner.h"
#include "penstock/report/layout_text.h"
#include "penstock/train/planning.h"

#include "commands.h"

namespace penstock::app {

struct PlanArguments {
  RecipeArguments recipe;
  std::string costs;      // --costs
  std::string memory;     // --memory
  std::string recompute;  // --recompute
  int64_t micro_batches = 0;
  int64_t slots = 0;
  std::string program;  // --program
  int64_t pipeline = 0;
  std::string schedule;  // --schedule
  int64_t chunks = 0;
  std::string cuts;  // --cuts
  int64_t flush_every = 0;
  int64_t ranks = 0;  // --ranks, of plan alone
};

// --memory, --recompute, --micro-batches, --slots, --program, --pipeline, --schedule, --chunks,
// --cuts and --flush-every, beside those of every recipe.
void add_plan_arguments(CLI::App& command, PlanArguments& arguments);

// ConfigError where it would change nothing.
void require_use_of_flush_every(int64_t flush_every, const config::PlanOptions& plan);

// The recipe with the arguments over it.
config::Recipe load_planned_recipe(const PlanArguments& arguments);

// Plans the recipe or the cost table, on one rank.
train::Planned make_plan(const PlanArguments& arguments);

// Whether the recipe or the arguments ask for several ranks, and their plan.
bool asks_for_pipeline(const PlanArguments& arguments);
struct PlannedPipeline {
  plan::CostTable costs;
  plan::PipelineResult result;
  int64_t limit_bytes = 0;
  std::vector<report::LayoutRow> layouts =
      {};  // that were compared, the best first; none: it was given

  int32_t micro_batches() const {  // of each update
    return result.pipeline.schedule.micro_batches / result.pipeline.schedule.updates;
  }
};
PlannedPipeline make_pipeline_plan(const PlanArguments& arguments);

// Where --program asks for it, in the form that its ending names.
void write_program_file(const PlanArguments& arguments, const program::Program& program);

}  // namespace penstock::app
