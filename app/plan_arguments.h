// What plan, simulate and check have in common: a recipe or a bare cost table, a limit, a kind of
// recomputation.
#pragma once

#include <string>

#include "penstock/config/recipe.h"
#include "penstock/plan/planner.h"
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
};

// --memory, --recompute, --micro-batches, --slots and --program, beside those of every recipe.
void add_plan_arguments(CLI::App& command, PlanArguments& arguments);

// The recipe with the arguments over it.
config::Recipe load_planned_recipe(const PlanArguments& arguments);

// Plans the recipe or the cost table.
train::Planned make_plan(const PlanArguments& arguments);

// Where --program asks for it, in the form that its ending names.
void write_program_file(const PlanArguments& arguments, const program::Program& program);

}  // namespace penstock::app
