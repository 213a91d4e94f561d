#include "penstock/train/lr_range.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/interrupt.h"
#include "penstock/config/recipe.h"
#include "penstock/report/line_chart.h"
#include "penstock/train/setup.h"

#include "commands.h"

namespace penstock::app {

namespace {

struct LrRangeArguments {
  RecipeArguments recipe;
  train::LrRangeOptions options;
  std::string svg;
};

report::LineChart make_chart(const train::LrRange& range) {
  report::LineChart chart{.title = "Learning-rate range test",
                          .x_label = "learning rate",
                          .y_label = "loss, smoothed",
                          .log_x = true,
                          .curves = {{"loss", range.rates, range.smoothed}},
                          .marks = {}};
  if (range.suggested) {
    chart.marks.push_back({*range.suggested, "suggested"});
  }
  return chart;
}

int run_lr_range(const LrRangeArguments& arguments) {
  install_interrupt_handler();
  config::Recipe recipe = config::load_recipe(arguments.recipe.recipe, arguments.recipe.settings);
  if (recipe.plan.data > 1) {
    throw ConfigError(cat("lr-range runs on one rank, and plan.data is ",
                          recipe.plan.data,
                          "; its losses are the same there: add --set plan.data=1 --set "
                          "plan.shard=none"));
  }
  if (recipe.plan.pipeline > 1) {
    const bool is_asynchronous = recipe.plan.is_asynchronous();
    throw ConfigError(cat("lr-range runs on one rank, and plan.pipeline is ",
                          recipe.plan.pipeline,
                          is_asynchronous
                              ? "; without the delays of an asynchronous pipeline: add --set "
                                "plan.pipeline=1 --set plan.schedule=auto"
                              : "; its losses are the same there: add --set plan.pipeline=1"));
  }
  if (!arguments.svg.empty()) {
    // Found out now, not after the whole test.
    const std::filesystem::path folder = std::filesystem::absolute(arguments.svg).parent_path();
    if (!std::filesystem::is_directory(folder)) {
      throw ConfigError(cat("--svg ", arguments.svg, ": there is no folder ", folder.string()));
    }
  }
  train::prepare_process(recipe);
  const train::LrRange range = train::test_lr_range(recipe, arguments.options);
  const report::LineChart chart = make_chart(range);
  if (!arguments.svg.empty()) {
    write_text_file(arguments.svg, report::line_chart_svg(chart));
  }
  if (arguments.recipe.as_json) {
    nlohmann::ordered_json json{{"learning_rates", range.rates},
                                {"losses", range.losses},
                                {"smoothed", range.smoothed},
                                {"suggested", nullptr}};
    if (range.suggested) {
      json["suggested"] = *range.suggested;
    }
    std::printf("%s\n", json.dump().c_str());
    return 0;
  }
  std::printf("%s\n", report::line_chart_text(chart, 80, 20).c_str());
  if (range.suggested) {
    std::printf("The loss falls fastest near lr %.2e; try train.lr = %.1e.\n",
                *range.suggested,
                *range.suggested);
  } else {
    std::printf("The loss never fell; try a wider range with --from and --to.\n");
  }
  if (!arguments.svg.empty()) {
    std::printf("The curve is in %s.\n", arguments.svg.c_str());
  }
  return 0;
}

}  // namespace

void add_lr_range_command(Command& app) {
  Command command = app.add_command(
      "lr-range",
      "learning-rate range test: train with a growing rate, plot the loss, suggest a rate");
  const auto arguments = std::make_shared<LrRangeArguments>();
  add_recipe_arguments(command, arguments->recipe).required();
  command.add("--from", arguments->options.lowest, "the first rate").positive().shows_default();
  command.add("--to", arguments->options.highest, "the last rate").positive().shows_default();
  command
      .add("--steps",
           arguments->options.steps,
           "how many steps, evenly spaced in the logarithm of the rate")
      .in_range(int64_t{2}, int64_t{1'000'000})
      .shows_default();
  command.add("--svg", arguments->svg, "write the curve to this file").named("FILE");
  command.ends_with(
      "Nothing is saved: the weights are thrown away. The test ends early when the loss explodes.");
  command.runs([arguments] { return run_lr_range(*arguments); });
}

}  // namespace penstock::app
