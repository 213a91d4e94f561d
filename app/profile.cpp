#include <cstdio>
#include <memory>
#include <set>
#include <string>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/table.h"
#include "penstock/train/planning.h"
#include "penstock/train/setup.h"

#include "arguments.h"
#include "commands.h"

namespace penstock::app {

namespace {

struct ProfileArguments {
  RecipeArguments recipe;
  std::string out;
};

void print_text(const plan::CostTable& costs) {
  using report::Align;
  report::Table table({{"layer"},
                       {"save mode"},
                       {"forward ms", Align::Right},
                       {"backward ms", Align::Right},
                       {"output", Align::Right},
                       {"saved", Align::Right},
                       {"forward extra", Align::Right},
                       {"backward extra", Align::Right}});
  // Layers of one kind were measured once, so they are shown once.
  std::set<std::string> shown;
  for (const plan::LayerCost& layer : costs.layers) {
    if (!layer.kind.empty() && !shown.insert(layer.kind).second) {
      continue;
    }
    table.add_row({layer.name,
                   "nothing",
                   format_milliseconds(layer.forward_s),
                   "",
                   format_bytes(layer.output_bytes),
                   "",
                   format_bytes(layer.forward_extra_bytes),
                   ""});
    for (const plan::SaveModeCost& mode : layer.modes) {
      table.add_row({"",
                     mode.name,
                     format_milliseconds(mode.forward_s),
                     format_milliseconds(mode.backward_s),
                     "",
                     format_bytes(mode.saved_bytes),
                     format_bytes(mode.forward_extra_bytes),
                     format_bytes(mode.backward_extra_bytes)});
    }
  }
  table.add_row({costs.loss.name,
                 "",
                 "",
                 format_milliseconds(costs.loss.seconds),
                 "",
                 "",
                 "",
                 format_bytes(costs.loss.extra_bytes)});
  std::printf("%s\n\n%s\nclear gradients %s ms, optimizer's step %s ms\n",
              costs.description.c_str(),
              table.text().c_str(),
              format_milliseconds(costs.clear_s).c_str(),
              format_milliseconds(costs.step_s).c_str());
}

int profile_model(const ProfileArguments& arguments) {
  require_writable(arguments.out);
  config::Recipe recipe = config::load_recipe(arguments.recipe.recipe, arguments.recipe.settings);
  train::prepare_process(recipe);
  const plan::CostTable costs = train::measure_recipe(recipe);
  const std::string json = plan::format_costs(costs);
  if (!arguments.out.empty()) {
    write_text_file(arguments.out, json);
    log_info("wrote ", arguments.out);
  }
  if (arguments.recipe.as_json) {
    std::printf("%s", json.c_str());
  } else {
    print_text(costs);
  }
  return 0;
}

}  // namespace

void add_profile_command(Command& app) {
  Command command = app.add_command(
      "profile", "measure the model's layers on this device and write a cost table");
  const auto arguments = std::make_shared<ProfileArguments>();
  add_recipe_arguments(command, arguments->recipe).required();
  command.add("--out", arguments->out, "write the cost table to this file, as JSON")
      .named("FILE")
      .not_empty();
  command.ends_with("plan.costs = \"FILE\" in a recipe, or --costs, plans with it.");
  command.runs([arguments] { return profile_model(*arguments); });
}

}  // namespace penstock::app
