#include "bare_schedule.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/units.h"
#include "penstock/plan/bare_pipeline.h"
#include "penstock/report/table.h"

#include "arguments.h"

namespace penstock::app {

namespace {

constexpr int64_t kMostRanks = 4096;

double require_time(const std::optional<double>& time, const char* name) {
  if (!time) {
    throw ConfigError(cat("--schedule without a recipe needs ",
                          name,
                          ": what that phase of a micro-batch takes on every rank, in any unit"));
  }
  return *time;
}

plan::BareTimes times_of(const BareScheduleArguments& arguments) {
  if (arguments.backward && (arguments.backward_input || arguments.backward_weight)) {
    throw ConfigError(
        "--backward is the input and the weight gradient at once; give it, or --backward-input and "
        "--backward-weight");
  }
  const std::pair<const char*, std::optional<double>> all[] = {
      {"--forward", arguments.forward},
      {"--backward", arguments.backward},
      {"--backward-input", arguments.backward_input},
      {"--backward-weight", arguments.backward_weight},
      {"--transfer", arguments.transfer}};
  for (const auto& [name, time] : all) {
    if (time && !std::isfinite(*time)) {
      throw ConfigError(cat(name, " is no number; give one from 0 up, in any unit"));
    }
  }
  plan::BareTimes times{.forward = require_time(arguments.forward, "--forward"),
                        .transfer = arguments.transfer.value_or(0)};
  if (arguments.backward) {
    times.backward_input = times.backward_weight = *arguments.backward / 2;
  } else {
    times.backward_input = require_time(arguments.backward_input, "--backward-input");
    times.backward_weight = require_time(arguments.backward_weight, "--backward-weight");
  }
  return times;
}

void print_table(const plan::BarePipeline& bare) {
  std::vector<report::Column> columns{{"rank", report::Align::Right},
                                      {"in flight", report::Align::Right},
                                      {"busy", report::Align::Right},
                                      {"of the time", report::Align::Right}};
  const bool is_asynchronous = bare.schedule.updates > 1;
  if (is_asynchronous) {
    columns.push_back({"gradients late by", report::Align::Right});
    columns.push_back({"versions of weights", report::Align::Right});
  }
  report::Table table(columns);
  const std::vector<int32_t> delays = schedule::most_delayed(bare.schedule);
  const std::vector<int32_t> versions = schedule::most_versions(bare.schedule);
  for (size_t rank = 0; rank < bare.in_flight.size(); ++rank) {
    const double seconds = bare.timeline.ranks[rank].compute_seconds();
    const double all = bare.timeline.seconds;
    char share[32];
    std::snprintf(share, sizeof share, "%.1f %%", all > 0 ? 100 * seconds / all : 0);
    std::vector<std::string> row{
        cat(rank), format_number(bare.in_flight[rank]), format_number(seconds), share};
    if (is_asynchronous) {
      row.push_back(cat(delays[rank], " updates"));
      row.push_back(cat(versions[rank]));
    }
    table.add_row(row);
  }
  std::printf(
      "step %s, bubble %.2f %%%s\n\n%s",
      format_number(bare.step).c_str(),
      100 * bare.bubble,
      is_asynchronous ? cat(", drained every ", bare.schedule.updates, " updates").c_str() : "",
      table.text().c_str());
}

}  // namespace

void add_bare_schedule_arguments(Command& command, BareScheduleArguments& arguments) {
  const auto add_time = [&](const char* name, std::optional<double>& time, const char* help) {
    command.add(name, time, help).in_range(0.0, 1e12).named("TIME");
  };
  command.add("--ranks", arguments.ranks, "ranks of a pipeline of bare numbers")
      .in_range(int64_t{1}, kMostRanks)
      .named("N");
  add_time(
      "--forward", arguments.forward, "what a micro-batch's forward takes on a rank, in any unit");
  add_time("--backward-input", arguments.backward_input, "likewise, the gradient of its input");
  add_time(
      "--backward-weight", arguments.backward_weight, "likewise, the gradients of its weights");
  add_time("--backward", arguments.backward, "instead of both, half of it for each");
  add_time("--transfer", arguments.transfer, "latency of a message between ranks");
}

bool is_bare_schedule(const BareScheduleArguments& arguments) {
  return arguments.ranks > 0 || arguments.forward || arguments.backward ||
         arguments.backward_input || arguments.backward_weight || arguments.transfer;
}

int simulate_bare_schedule(const BareScheduleArguments& arguments,
                           const PlanArguments& plan,
                           const PictureArguments& pictures) {
  const PlanFlags& flags = plan.flags;
  if (!flags.has("plan.schedule")) {
    throw ConfigError(
        cat("a pipeline of bare numbers needs --schedule: ", join(schedule::kind_names(), ", ")));
  }
  constexpr const char* kKnown[] = {
      "plan.schedule", "plan.micro_batches", "plan.chunks", "plan.flush_every"};
  const bool has_others = std::any_of(flags.given.begin(), flags.given.end(), [&](const auto& one) {
    return std::find(std::begin(kKnown), std::end(kKnown), one.first) == std::end(kKnown);
  });
  if (has_others || plan.slots > 0 || !plan.recipe.settings.empty()) {
    throw ConfigError(
        "a pipeline of bare numbers has no layers and no bytes: of the flags of [plan] it takes "
        "--schedule, --micro-batches, --chunks and --flush-every; --memory, --recompute, --cuts, "
        "--pipeline, --slots, --set and the others are for a recipe or a cost table");
  }
  const config::PlanOptions options = flags.options();
  const schedule::Kind kind = schedule::parse_kind(options.schedule);
  const plan::BareTimes times = times_of(arguments);
  if (arguments.ranks < 1 || !flags.has("plan.micro_batches")) {
    throw ConfigError("a pipeline of bare numbers needs --ranks and --micro-batches");
  }
  schedule::Sizes sizes{.ranks = static_cast<int32_t>(arguments.ranks),
                        .micro_batches = static_cast<int32_t>(options.micro_batches),
                        .chunks = static_cast<int32_t>(options.chunks)};
  require_use_of_flush_every(flags, options);
  if (schedule::is_asynchronous(kind)) {
    sizes.updates = static_cast<int32_t>(options.flush_every);
  }
  require_writable(pictures);
  require_writable(plan.program);
  const plan::BarePipeline bare = plan::run_bare_pipeline(kind, sizes, times);
  write_program_file(plan, bare.program);
  const std::string title = cat(options.schedule,
                                ", ",
                                arguments.ranks,
                                " ranks, ",
                                options.micro_batches,
                                " micro-batches",
                                sizes.updates > 1 ? " in each update" : "");
  write_pictures({title, bare.program, bare.timeline}, pictures);
  if (plan.recipe.as_json) {
    nlohmann::ordered_json json{
        {"step", bare.step}, {"bubble", bare.bubble}, {"in_flight", bare.in_flight}};
    if (schedule::is_asynchronous(kind)) {
      json["flush_every"] = sizes.updates;
      json["delay"] = schedule::most_delayed(bare.schedule);
      json["weight_versions"] = schedule::most_versions(bare.schedule);
    }
    std::printf("%s\n", json.dump().c_str());
  } else {
    print_table(bare);
  }
  return 0;
}

}  // namespace penstock::app
