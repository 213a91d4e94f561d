#include "step_source.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/config/options.h"
#include "penstock/program/program_file.h"
#include "penstock/program/verify.h"
#include "penstock/report/plan_text.h"

namespace penstock::app {

namespace {

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

}  // namespace

StepSource load_step(const PlanArguments& arguments) {
  const std::string& source = arguments.recipe.recipe;
  if (is_program_file(source)) {
    require_no_planning(arguments);
    return {source, read_checked_program(source)};
  }
  PlannedStep planned = make_plan(arguments);
  if (!planned.result.is_feasible) {
    throw Error(ExitCode::Negative, report::does_not_fit(planned.result));
  }
  return {report::plan_title(planned.costs, planned.result), std::move(planned.result.program)};
}

StepSource load_step(const std::string& file) {
  PlanArguments arguments;
  arguments.recipe.recipe = file;
  return load_step(arguments);
}

}  // namespace penstock::app
