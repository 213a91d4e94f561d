// What plan, simulate and check have in common: a recipe or a bare cost table, and the flags of
// [plan].
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/plan/machine.h"
#include "penstock/plan/planner.h"
#include "penstock/train/layout.h"

#include "commands.h"
#include "plan_flags.h"

namespace penstock::app {

struct PlanArguments {
  RecipeArguments recipe;
  PlanFlags flags;
  int64_t slots = 0;    // --slots
  std::string program;  // --program
  int64_t ranks = 0;    // --ranks, of plan alone

  bool has_recipe() const { return !recipe.recipe.empty(); }
};

// The flags of [plan], --slots and --program, beside those of every recipe.
void add_plan_arguments(Command& command, PlanArguments& arguments);

// The recipe with the arguments over it.
config::Recipe load_planned_recipe(const PlanArguments& arguments);

// Of a bare cost table: the default recipe, and [plan] of the flags.
using PlannedStep = train::PlannedRanks;

// --slots is for one rank.
void require_no_slots(const PlanArguments& arguments);

// Plans the recipe or the cost table.
PlannedStep make_plan(const PlanArguments& arguments);

// Where --program asks for it, in the form that its ending names.
void write_program_file(const PlanArguments& arguments, const program::Program& program);

}  // namespace penstock::app
