#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "penstock/base/interrupt.h"
#include "penstock/base/log.h"
#include "penstock/base/quote.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/comm/launcher.h"
#include "penstock/config/options.h"
#include "penstock/plan/plan_file.h"
#include "penstock/program/simulate.h"
#include "penstock/report/layer_table.h"
#include "penstock/report/table.h"
#include "penstock/train/planning.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/rank_trainer.h"
#include "penstock/train/ranks.h"
#include "penstock/train/setup.h"

#include "arguments.h"
#include "commands.h"
#include "pictures.h"
#include "plan_flags.h"

namespace penstock::app {

namespace {

struct TrainArguments {
  std::string program;
  RecipeArguments recipe;
  std::string resume;
  PlanFlags flags;
  std::string plan;
  int64_t ranks = 0;
  PictureArguments pictures;
};

std::string fixed4(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

void print_json(const config::Recipe& recipe,
                const train::Summary& summary,
                const plan::Outcome& result) {
  nlohmann::ordered_json json{
      {"steps", static_cast<int64_t>(summary.losses.size())},
      {"first_step", summary.first_step},
      {"losses", summary.losses},
      {"validation_loss", nullptr},
      {"tokens_per_second", summary.tokens_per_second},
      {"seconds", summary.seconds},
      {"step_seconds", summary.step_seconds},
      {"predicted_step_seconds", nullptr},
      {"peak_bytes", summary.peak_bytes},
      {"predicted_peak_bytes", nullptr},
      {"rank_peak_bytes", summary.rank_peak_bytes},
      {"predicted_rank_peak_bytes", summary.predicted_rank_peak_bytes},
      {"peak_rss_bytes", summary.peak_resident_bytes},
      {"limit_bytes", recipe.plan.memory_bytes()},
      {"rank_payload_bytes", summary.rank_payload_bytes},
      {"predicted_rank_payload_bytes", summary.predicted_rank_payload_bytes},
      {"sent_bytes", summary.sent_bytes},
      {"rank_read_bytes", summary.rank_read_bytes},
      {"rank_ahead_bytes", summary.rank_ahead_bytes},
      {"parameters", summary.parameters},
      {"out", recipe.run.out},
      {"checkpoint", summary.checkpoint.string()},
      {"interrupted", summary.was_interrupted},
      {"stop_reason", summary.stop_reason}};
  if (result.step_s > 0) {
    json["predicted_step_seconds"] = result.step_s;
    json["predicted_peak_bytes"] = result.most_peak_bytes();
  }
  if (summary.validation_loss) {
    json["validation_loss"] = *summary.validation_loss;
  }
  if (!summary.sample.empty()) {
    json["sample"] = summary.sample;
  }
  // A sample may end within a character.
  std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void print_text(const train::Summary& summary, const plan::Outcome& result) {
  report::Table table({{""}, {""}});
  const auto add = [&](const char* what, const std::string& value) {
    table.add_row({what, value});
  };
  add("steps",
      cat(summary.losses.size(),
          summary.first_step > 0 ? cat(" from step ", summary.first_step) : ""));
  if (!summary.losses.empty()) {
    add("loss", cat(fixed4(summary.losses.front()), " -> ", fixed4(summary.losses.back())));
  }
  if (summary.validation_loss) {
    add("validation loss", fixed4(*summary.validation_loss));
  }
  add("time", format_seconds(summary.seconds));
  add("tokens per second", format_count(static_cast<int64_t>(summary.tokens_per_second)));
  const bool is_predicted = result.step_s > 0;
  add("step",
      cat(format_seconds(summary.step_seconds),
          is_predicted ? cat(", predicted ", format_seconds(result.step_s)) : ""));
  const int64_t limit = result.limit_bytes();
  add("peak memory",
      cat(format_bytes(summary.peak_bytes),
          is_predicted ? cat(", predicted ", format_bytes(result.most_peak_bytes())) : "",
          limit > 0 ? cat(", limit ", format_bytes(limit)) : ""));
  add("process memory", format_bytes(summary.peak_resident_bytes));
  if (summary.sent_bytes > 0) {
    add("sent to replicas", cat(format_bytes(summary.sent_bytes), " a step"));
  }
  add("parameters", format_count(summary.parameters));
  if (!summary.checkpoint.empty()) {
    add("checkpoint", summary.checkpoint.string());
  }
  std::printf("%s", table.text().c_str());
  if (!summary.sample.empty()) {
    std::printf("\nA sample of what it writes now:\n\n%s\n", summary.sample.c_str());
  }
}

std::string continue_hint(const TrainArguments& arguments,
                          const config::Recipe& recipe,
                          const train::Summary& summary) {
  if (summary.checkpoint.empty()) {
    return "no step was done, so nothing was saved";
  }
  std::string command = cat(comm::launcher_words(),
                            shell_word(arguments.program),
                            " train ",
                            shell_word(arguments.recipe.recipe));
  for (const std::string& setting : arguments.recipe.settings) {
    command += cat(" --set ", shell_word(setting));
  }
  for (const auto& [key, text] : arguments.flags.given) {
    command += cat(" ", config::find_option(key, "").flag(), " ", shell_word(text));
  }
  if (!arguments.plan.empty()) {
    command += cat(" --plan ", shell_word(arguments.plan));
  }
  if (arguments.ranks > 0) {
    command += cat(" --ranks ", arguments.ranks);
  }
  return cat("continue with: ", command, " --resume ", shell_word(recipe.run.out));
}

// Measured beside predicted: the pictures that were asked for, and a table.
void show_step(const std::string& title,
               const train::MeasuredStep& measured,
               const PictureArguments& pictures) {
  const program::Timeline predicted = program::simulate(measured.program);
  const report::StepPicture picture{title, measured.program, predicted, &measured.timeline};
  write_pictures(picture, pictures);
  log_line(LogLevel::Info, report::measured_beside_predicted(picture));
}

void show(const TrainArguments& arguments,
          const config::Recipe& recipe,
          const train::RankTrainer& trainer,
          const train::Summary& summary) {
  if (summary.was_interrupted) {
    log_info("stopped by ", summary.stop_reason, "; ", continue_hint(arguments, recipe, summary));
  }
  if (arguments.recipe.as_json) {
    print_json(recipe, summary, trainer.plan().result);
  } else {
    print_text(summary, trainer.plan().result);
  }
}

// The recipe with the plan's decisions. A launcher's ranks have to be as many.
config::Recipe with_plan(config::Recipe recipe,
                         const plan::PlanFile& given,
                         const std::string& file) {
  plan::require_plan_of(given, recipe, file);
  recipe.plan = given.plan.options;
  recipe.plan.costs.clear();  // the plan has its own
  config::validate(recipe);   // what the recipe says of numbers may not go with the plan's schedule
  return recipe;
}

int train_model(const TrainArguments& arguments) {
  install_interrupt_handler();
  require_writable(arguments.pictures);
  std::vector<std::string> settings = arguments.recipe.settings;
  const std::vector<std::string> flags = arguments.flags.settings();
  settings.insert(settings.end(), flags.begin(), flags.end());
  config::Recipe recipe = config::load_recipe(arguments.recipe.recipe, settings);
  std::optional<plan::PlanFile> given;
  if (!arguments.plan.empty()) {
    given = plan::read_plan(arguments.plan);
    recipe = with_plan(std::move(recipe), *given, arguments.plan);
  }
  const train::PlanSource source{.predicts = arguments.pictures.any(),
                                 .given = given ? &*given : nullptr};
  require_use_of_flush_every(arguments.flags, recipe.plan);
  train::prepare_process(recipe, arguments.ranks);
  const auto work = [&](comm::Group& group, const config::Recipe& chosen) {
    train::RankTrainer trainer(chosen, arguments.resume, group, source);
    const train::Summary summary = trainer.run();
    if (arguments.pictures.any()) {
      if (const auto measured = trainer.measured_step()) {
        show_step(trainer.plan_title(), *measured, arguments.pictures);
      }
    }
    if (group.rank() == 0) {
      show(arguments, chosen, trainer, summary);
    }
  };
  if (given) {  // it has a layout: that of other ranks is refused, not chosen
    train::run_ranks(recipe, arguments.ranks, [&](comm::Group& group) { work(group, recipe); });
  } else {
    train::run_chosen_ranks(recipe, arguments.ranks, work);
  }
  return 0;
}

}  // namespace

void add_train_command(Command& app) {
  Command command = app.add_command("train", "train the model of a recipe");
  const auto arguments = std::make_shared<TrainArguments>();
  arguments->program = app.name();
  add_recipe_arguments(command, arguments->recipe).required();
  command
      .add("--resume",
           arguments->resume,
           "continue from this checkpoint, or from the latest of this run's folder; auto: from the "
           "latest "
           "of run.out where there is one, else start")
      .named("PATH")
      .not_empty();
  command
      .add("--plan",
           arguments->plan,
           "run this plan, as penstock plan --out has written it, instead of making one")
      .named("FILE")
      .not_empty();
  command
      .add("--ranks",
           arguments->ranks,
           "ranks of the run, as threads where no launcher has started them: plan.pipeline "
           "x plan.data; what the recipe leaves open of those is chosen")
      .in_range(int64_t{1}, int64_t{4096})
      .named("N");
  add_plan_flags(command, arguments->flags);
  add_picture_arguments(command, arguments->pictures);
  command.ends_with(
      "Ctrl-C, SIGTERM, SIGUSR1, SIGHUP and the end of run.hours save a checkpoint and stop; a "
      "second "
      "Ctrl-C stops at once. What a recipe may say: penstock options.");
  command.runs([arguments] { return train_model(*arguments); });
}

}  // namespace penstock::app
