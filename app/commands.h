// The subcommands: each adds itself to the command line and says what to run. One file each.
#pragma once

#include <string>
#include <vector>

#include "command_line.h"

namespace penstock::app {

// What every command that reads a recipe takes.
struct RecipeArguments {
  std::string recipe;
  std::vector<std::string> settings;  // --set key=value
  bool as_json = false;
};
// Returns that of the recipe.
Argument add_recipe_arguments(Command& command, RecipeArguments& arguments);

void add_train_command(Command& app);
void add_plan_command(Command& app);
void add_profile_command(Command& app);
void add_simulate_command(Command& app);
void add_check_command(Command& app);
void add_describe_command(Command& app);
void add_sample_command(Command& app);
void add_lr_range_command(Command& app);
void add_bench_command(Command& app);
void add_submit_command(Command& app);
void add_jobs_command(Command& app);
void add_options_command(Command& app);

}  // namespace penstock::app
