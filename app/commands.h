// The subcommands: each adds itself to the command line and says what to run. One file each.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace penstock::app {

// What every command that reads a recipe takes.
struct RecipeArguments {
  std::string recipe;
  std::vector<std::string> settings;  // --set key=value
  bool as_json = false;
};
void add_recipe_arguments(CLI::App& command, RecipeArguments& arguments, bool is_required = true);

// Returns the exit code. Set by the command that was chosen.
using Action = std::function<int()>;

void add_train_command(CLI::App& app, Action& action);
void add_plan_command(CLI::App& app, Action& action);
void add_profile_command(CLI::App& app, Action& action);
void add_simulate_command(CLI::App& app, Action& action);
void add_check_command(CLI::App& app, Action& action);
void add_describe_command(CLI::App& app, Action& action);
void add_sample_command(CLI::App& app, Action& action);
void add_lr_range_command(CLI::App& app, Action& action);
void add_bench_command(CLI::App& app, Action& action);
void add_options_command(CLI::App& app, Action& action);

}  // namespace penstock::app
