#include "penstock/program/simulate.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/report/bubbles.h"
#include "penstock/report/layer_table.h"
#include "penstock/report/peak_values.h"

#include "arguments.h"
#include "bare_schedule.h"
#include "commands.h"
#include "compare_steps.h"
#include "pictures.h"
#include "plan_arguments.h"
#include "step_source.h"

namespace penstock::app {

namespace {

struct SimulateArguments {
  PlanArguments plan;
  PictureArguments pictures;
  BareScheduleArguments bare;
  bool peak = false;
  std::string compare;
};

// The share of the step in which the rank computes.
double compute_occupancy(const program::Timeline& timeline, size_t rank) {
  return timeline.seconds > 0 ? timeline.ranks[rank].compute_seconds() / timeline.seconds : 1;
}

nlohmann::ordered_json peak_json(const report::PeakValues& peak) {
  nlohmann::ordered_json values = nlohmann::ordered_json::array();
  for (const report::HeldValue& value : peak.values) {
    nlohmann::ordered_json one{{"value", value.name}, {"what", value.what}, {"of", value.of}};
    one["micro_batch"] =
        value.micro_batch >= 0 ? nlohmann::ordered_json(value.micro_batch) : nullptr;
    one["bytes"] = value.bytes;
    values.push_back(std::move(one));
  }
  return values;
}

void print_json(const program::Program& program, const program::Timeline& timeline, bool peak) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const program::RankTimeline& one = timeline.ranks[rank];
    ranks.push_back({{"peak_bytes", one.peak_bytes},
                     {"limit_bytes", program.ranks[rank].limit_bytes},
                     {"peak_instruction", one.peak_instruction},
                     {"instructions", one.spans.size()},
                     {"compute_occupancy", compute_occupancy(timeline, rank)},
                     {"idle", report::bubbles_of(program.ranks[rank], one).share}});
    if (peak) {
      ranks.back()["alive_at_peak"] = peak_json(report::values_at_peak(program, rank, one));
    }
  }
  nlohmann::ordered_json json{{"step", timeline.seconds / std::max(1, program.updates)},
                              {"ranks", ranks}};
  if (program.updates > 1) {
    json["updates"] = program.updates;
  }
  std::printf("%s\n", json.dump().c_str());
}

void print_text(const report::StepPicture& picture, bool peak) {
  const program::Program& program = picture.program;
  const program::Timeline& timeline = picture.predicted;
  std::printf("%s", report::measured_beside_predicted(picture).c_str());
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const double idle = report::bubbles_of(program.ranks[rank], timeline.ranks[rank]).share;
    std::printf(
        "rank %zu computes %.1f %% of the step, and is idle for %.1f %% of the time from its first "
        "work to its last\n",
        rank,
        100 * compute_occupancy(timeline, rank),
        100 * idle);
  }
  constexpr size_t kMostValues = 30;  // a screen; --json has all
  for (size_t rank = 0; peak && rank < timeline.ranks.size(); ++rank) {
    const program::RankTimeline& one = timeline.ranks[rank];
    std::printf("\n%s", report::peak_values_text(program, rank, one, kMostValues).c_str());
  }
}

// Where options do not go together, the one that says so comes before all work.
void require_together(const SimulateArguments& arguments) {
  const bool compares = !arguments.compare.empty();
  if (compares && !arguments.pictures.trace.empty()) {
    throw ConfigError("--trace is of one program; with --compare there are two: --svg or --html");
  }
  if (compares && arguments.peak) {
    throw ConfigError(
        "--peak is of one program; with --compare there are two: --html has the lists of both");
  }
  if (!is_bare_schedule(arguments.bare)) {
    return;
  }
  if (arguments.plan.has_recipe() || arguments.plan.flags.has("plan.costs")) {
    throw ConfigError(
        "--ranks, --forward and the other times are for a pipeline of bare numbers; "
        "a recipe or a cost table has its own");
  }
  if (compares) {
    throw ConfigError(
        "--compare takes a recipe or a program beside another: write the pipeline of bare numbers "
        "with --program, then compare the files");
  }
  if (arguments.peak) {
    throw ConfigError("--peak lists bytes, and a pipeline of bare numbers has none");
  }
}

int simulate_step(const SimulateArguments& arguments) {
  require_together(arguments);
  if (is_bare_schedule(arguments.bare)) {
    return simulate_bare_schedule(arguments.bare, arguments.plan, arguments.pictures);
  }
  require_writable(arguments.pictures);
  require_writable(arguments.plan.program);
  const StepSource step = load_step(arguments.plan);
  const bool is_bare = report::is_bare(step.program);
  if (arguments.peak && is_bare) {
    throw ConfigError(cat("--peak lists bytes, and ", step.title, " has none"));
  }
  write_program_file(arguments.plan, step.program);
  if (!arguments.compare.empty()) {
    return compare_steps(
        step, load_step(arguments.compare), arguments.pictures, arguments.plan.recipe.as_json);
  }
  const program::Timeline timeline = program::simulate(step.program);
  const report::StepPicture picture{step.title, step.program, timeline};
  write_pictures(picture, arguments.pictures);
  if (arguments.plan.recipe.as_json) {
    print_json(step.program, timeline, arguments.peak);
  } else {
    print_text(picture, arguments.peak);
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
  command.add_flag(
      "--peak", arguments->peak, "list what each rank holds at its peak, the largest first");
  command
      .add(
          "--compare",
          arguments->compare,
          "a second recipe or program, taken as it is: both timelines, and what differs in numbers")
      .named("B")
      .not_empty();
  add_bare_schedule_arguments(command, arguments->bare);
  command.runs([arguments] { return simulate_step(*arguments); });
}

}  // namespace penstock::app
