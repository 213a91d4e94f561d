#include "penstock/program/simulate.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/config/options.h"
#include "penstock/program/program_file.h"
#include "penstock/program/verify.h"
#include "penstock/report/layer_table.h"
#include "penstock/report/plan_text.h"

#include "arguments.h"
#include "bare_schedule.h"
#include "commands.h"
#include "pictures.h"
#include "plan_arguments.h"

namespace penstock::app {

namespace {

struct SimulateArguments {
  PlanArguments plan;
  PictureArguments pictures;
  BareScheduleArguments bare;
};

// A recipe ends in .toml; everything else is taken for a program.
bool is_program_file(const std::string& name) {
  return !name.empty() && std::filesystem::path(name).extension() != ".toml";
}

// Options that would change nothing about a program must not look as if they did.
void require_no_planning(const PlanArguments& arguments) {
  std::vector<std::pair<std::string, bool>> options = {
      {"--set", !arguments.recipe.settings.empty()}, {"--slots", arguments.slots > 0}};
  for (const auto& [key, text] : arguments.flags.given) {
    options.emplace_back(config::find_option(key, "").flag(), true);
  }
  for (const auto& [name, is_given] : options) {
    if (is_given) {
      throw ConfigError(cat(arguments.recipe.recipe,
                            " is a program, which is planned already; ",
                            name,
                            " is for a recipe (.toml) or a cost table"));
    }
  }
}

program::Program read_checked_program(const std::string& file) {
  program::Program program = program::read_program(file);
  const program::Verdict verdict = program::verify(program);
  if (!verdict.is_sound()) {
    throw Error(ExitCode::Negative, cat(file, " is unsound: ", verdict.violation->text));
  }
  return program;
}

// The share of the step in which the rank computes.
double compute_occupancy(const program::Timeline& timeline, size_t rank) {
  return timeline.seconds > 0 ? timeline.ranks[rank].compute_seconds() / timeline.seconds : 1;
}

void print_json(const program::Program& program, const program::Timeline& timeline) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const program::RankTimeline& one = timeline.ranks[rank];
    ranks.push_back({{"peak_bytes", one.peak_bytes},
                     {"limit_bytes", program.ranks[rank].limit_bytes},
                     {"peak_instruction", one.peak_instruction},
                     {"instructions", one.spans.size()},
                     {"compute_occupancy", compute_occupancy(timeline, rank)}});
  }
  nlohmann::ordered_json json{{"step", timeline.seconds / program.updates}, {"ranks", ranks}};
  if (program.updates > 1) {
    json["updates"] = program.updates;
  }
  std::printf("%s\n", json.dump().c_str());
}

int simulate_step(const SimulateArguments& arguments) {
  if (is_bare_schedule(arguments.bare)) {
    if (arguments.plan.has_recipe() || arguments.plan.flags.has("plan.costs")) {
      throw ConfigError(
          "--ranks, --forward and the other times are for a pipeline of bare numbers; "
          "a recipe or a cost table has its own");
    }
    return simulate_bare_schedule(arguments.bare, arguments.plan, arguments.pictures);
  }
  require_writable(arguments.pictures);
  require_writable(arguments.plan.program);
  const std::string& source = arguments.plan.recipe.recipe;
  program::Program program;
  std::string title;
  if (is_program_file(source)) {
    require_no_planning(arguments.plan);
    program = read_checked_program(source);
    title = source;
  } else {
    PlannedStep planned = make_plan(arguments.plan);
    if (!planned.result.is_feasible) {
      throw Error(ExitCode::Negative, report::does_not_fit(planned.result));
    }
    title = report::plan_title(planned.costs, planned.result);
    program = std::move(planned.result.program);
  }
  write_program_file(arguments.plan, program);
  const program::Timeline timeline = program::simulate(program);
  const report::StepPicture picture{title, program, timeline};
  write_pictures(picture, arguments.pictures);
  if (arguments.plan.recipe.as_json) {
    print_json(program, timeline);
  } else {
    std::printf("%s", report::measured_beside_predicted(picture).c_str());
    for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
      std::printf(
          "rank %zu computes %.1f %% of the step\n", rank, 100 * compute_occupancy(timeline, rank));
    }
  }
  return 0;
}

}  // namespace

void add_simulate_command(Command& app) {
  Command command = app.add_command(
      "simulate", "timeline and memory of the step without running it, from a recipe or a program");
  const auto arguments = std::make_shared<SimulateArguments>();
  add_recipe_arguments(command, arguments->plan.recipe)
      .described_as("the recipe (.toml), or a program that plan or simulate has written");
  add_plan_arguments(command, arguments->plan);
  add_picture_arguments(command, arguments->pictures);
  add_bare_schedule_arguments(command, arguments->bare);
  command.runs([arguments] { return simulate_step(*arguments); });
}

}  // namespace penstock::app
