#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/config/options.h"
#include "penstock/config/recipe.h"
#include "penstock/memory/account.h"
#include "penstock/model/family.h"
#include "penstock/plan/operations.h"
#include "penstock/report/bench_text.h"
#include "penstock/report/step_floor.h"
#include "penstock/train/planning.h"
#include "penstock/train/setup.h"
#include "penstock/train/step_bench.h"

#include "bench_allreduce.h"
#include "commands.h"
#include "peer_process.h"

namespace penstock::app {

namespace {

struct StepArguments {
  std::string size = "124M";
  int64_t batch = 0;
  std::vector<std::string> settings;
  std::string peers = "auto";
  std::string python = "python3";
  std::string peer_script;
  double window_s = 5;
  double warm_s = 5;
  int64_t rounds = 2;
  bool shows_kernels = false;
  bool predicts = false;
  bool as_json = false;
};

// The sizes that can be named are those of the family that recipes have by default.
std::vector<model::NamedSize> known_sizes() {
  return model::find_family(config::ModelOptions().family).sizes();
}

std::vector<std::string> size_names() {
  std::vector<std::string> names;
  for (const model::NamedSize& size : known_sizes()) {
    names.push_back(size.name);
  }
  return names;
}

const model::Family& family_of(const config::Recipe& recipe) {
  return model::find_family(recipe.model.family);
}

// What trains the same model with PyTorch, where a family has that.
std::string peer_script_name(const config::ModelOptions& model) {
  return model.family + "_peer.py";
}

model::NamedSize named_size(const std::string& name) {
  const std::vector<model::NamedSize> sizes = known_sizes();
  const auto found = std::find_if(
      sizes.begin(), sizes.end(), [&](const model::NamedSize& size) { return size.name == name; });
  PENSTOCK_CHECK(found != sizes.end(), "no size is called ", name);
  return *found;
}

config::Recipe step_recipe(const StepArguments& arguments) {
  const model::NamedSize size = named_size(arguments.size);
  config::Recipe recipe;
  recipe.model = size.model;
  recipe.data.tokenizer = "tokens";
  recipe.train.batch = arguments.batch > 0 ? arguments.batch : size.batch;
  recipe.train.precision = "bfloat16";
  recipe.train.lr = 1e-4;
  recipe.train.weight_decay = 0.1;
  recipe.train.beta2 = 0.95;
  recipe.train.clip = 1;
  recipe.run.device = "cuda";
  for (const std::string& setting : arguments.settings) {
    config::apply_setting(recipe, setting);
  }
  if (recipe.plan.pipeline > 1) {
    throw ConfigError(
        cat("bench step runs on one rank, and plan.pipeline is ", recipe.plan.pipeline));
  }
  if (recipe.plan.data > 1) {
    throw ConfigError(cat("bench step runs on one rank, and plan.data is ", recipe.plan.data));
  }
  return recipe;
}

std::string find_peer_script(const StepArguments& arguments, const config::Recipe& recipe) {
  if (!arguments.peer_script.empty()) {
    return arguments.peer_script;
  }
  const std::filesystem::path name = peer_script_name(recipe.model);
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  for (const std::filesystem::path& place : {"bench" / name,
                                             program.parent_path() / "../share/penstock" / name,
                                             program.parent_path() / "../../../bench" / name}) {
    if (std::filesystem::exists(place, ignored)) {
      return place.string();
    }
  }
  return "";
}

std::vector<std::string> peer_command(const StepArguments& arguments,
                                      const config::Recipe& recipe,
                                      const std::string& script,
                                      const std::string& peer) {
  // "compile", or "eager+recompute=all": a mode and further options of the script.
  std::vector<std::string> command{arguments.python,
                                   script,
                                   "--layers",
                                   cat(recipe.model.layers),
                                   "--width",
                                   cat(recipe.model.width),
                                   "--heads",
                                   cat(recipe.model.heads),
                                   "--context",
                                   cat(recipe.model.context),
                                   "--vocabulary",
                                   cat(recipe.model.vocabulary),
                                   "--batch",
                                   cat(recipe.train.batch),
                                   "--device",
                                   recipe.run.device,
                                   "--mode"};
  size_t first = 0;
  bool is_mode = true;
  while (first <= peer.size()) {
    const size_t end = std::min(peer.find('+', first), peer.size());
    const std::string part = peer.substr(first, end - first);
    if (is_mode) {
      command.push_back(part);
    } else {
      const size_t equals = part.find('=');
      command.push_back("--" + part.substr(0, equals));
      command.push_back(part.substr(equals + 1));
    }
    is_mode = false;
    first = end + 1;
  }
  return command;
}

// Several windows together, of ours or of a peer.
struct Sum {
  double tokens = 0, seconds = 0, joules = 0;
  std::optional<double> clock_mhz;  // of the last window
  int64_t peak_bytes = 0;

  report::StepFigures figures(const std::string& who, const config::Recipe& recipe) const {
    const double flop = family_of(recipe).flop_per_token(recipe.model);
    report::StepFigures figures = report::step_figures(
        who, tokens / seconds, recipe.train.batch * recipe.model.context, flop);
    if (joules > 0) {
      figures.joules_per_token = joules / tokens;
      figures.watts = joules / seconds;
    }
    figures.clock_mhz = clock_mhz;
    figures.peak_bytes = peak_bytes;
    return figures;
  }
};

void add_window(Sum& sum, const config::Recipe& recipe, const train::Window& window) {
  const double tokens =
      static_cast<double>(window.steps * recipe.train.batch * recipe.model.context);
  log_info("ours: ",
           window.steps,
           " steps in ",
           format_seconds(window.seconds),
           ", ",
           format_count(static_cast<int64_t>(tokens / window.seconds)),
           " tokens/s");
  sum.tokens += tokens;
  sum.seconds += window.seconds;
  sum.joules += window.joules.value_or(0);
  sum.clock_mhz = window.clock_mhz;
}

// Windows of ours and of the peer in turns.
report::StepFigures run_beside(const StepArguments& arguments,
                               const config::Recipe& recipe,
                               const std::string& peer,
                               const std::string& script,
                               train::StepBench& bench,
                               Sum& ours) {
  PeerProcess process(peer_command(arguments, recipe, script, peer));
  log_info("torch ", peer, ": starting");
  const nlohmann::json warm = process.ask(cat("warm ", arguments.warm_s));
  log_info("torch ", peer, ": ", warm.dump());
  const auto joules = [&] {
    return bench.meter() == nullptr ? 0 : bench.meter()->joules().value_or(0);
  };
  Sum theirs;
  for (int64_t round = 0; round < arguments.rounds && !was_interrupted(); ++round) {
    add_window(ours, recipe, bench.run(arguments.window_s));
    const double before = joules();
    const nlohmann::json window = process.ask(cat("window ", arguments.window_s));
    theirs.joules += joules() - before;
    const double seconds = window.at("seconds").get<double>();
    theirs.seconds += seconds;
    theirs.tokens += window.at("tokens_per_second").get<double>() * seconds;
    const nlohmann::json& peak = window.at("peak_gib");  // null on the CPU
    theirs.peak_bytes =
        peak.is_null() ? 0 : static_cast<int64_t>(peak.get<double>() * (int64_t{1} << 30));
    log_info("torch ", peer, ": ", window.dump());
  }
  if (!(theirs.tokens > 0 && theirs.seconds > 0)) {
    throw PeerError("it has measured nothing");
  }
  return theirs.figures("torch " + peer, recipe);
}

std::vector<std::string> wanted_peers(const StepArguments& arguments) {
  std::vector<std::string> peers;
  if (arguments.peers == "none") {
    return peers;
  }
  const std::string all = arguments.peers == "auto" ? "compile,eager" : arguments.peers;
  size_t first = 0;
  while (first <= all.size()) {
    const size_t end = std::min(all.find(',', first), all.size());
    peers.push_back(all.substr(first, end - first));
    first = end + 1;
  }
  return peers;
}

struct TracedSteps {
  report::KernelBreakdown kernels;
  std::vector<report::KernelRow> groups;  // with floors, where the precision has 16 bits
};

TracedSteps trace_steps(const config::Recipe& recipe, train::StepBench& bench) {
  constexpr int64_t kSteps = 5;
  const device::Trace trace = bench.trace(kSteps);
  TracedSteps traced{
      .kernels = {.num_steps = kSteps, .busy_s = trace.busy_s, .span_s = trace.span_s}};
  for (const device::KernelTime& kernel : trace.kernels) {
    traced.kernels.rows.push_back(
        {.name = kernel.name, .count = kernel.count, .seconds = kernel.seconds});
  }
  report::set_shares(traced.kernels.rows);
  const bool has_rates =
      recipe.train.precision == "bfloat16" || recipe.train.precision == "float16";
  traced.groups = report::by_group(
      traced.kernels,
      has_rates ? family_of(recipe).work_of(recipe.model,
                                            {.batch = recipe.train.batch, .element_bytes = 2})
                : std::vector<report::StepWork>{});
  return traced;
}

// By its size's name, or by numbers where settings have made another of it.
std::string model_text(const StepArguments& arguments, const config::Recipe& recipe) {
  const config::ModelOptions& model = recipe.model;
  const config::ModelOptions named = named_size(arguments.size).model;
  const bool is_named = model.family == named.family && model.layers == named.layers &&
                        model.width == named.width && model.heads == named.heads;
  const std::string title = family_of(recipe).title();
  return is_named ? cat(title, " ", arguments.size)
                  : cat(title, " of ", model.layers, " layers, width ", model.width);
}

void print_result(const StepArguments& arguments,
                  const config::Recipe& recipe,
                  const train::StepBench& bench,
                  const report::StepFigures& ours,
                  const std::vector<report::StepFigures>& peers,
                  const std::optional<TracedSteps>& traced) {
  const plan::Outcome& plan = bench.planned().result;
  if (arguments.as_json) {
    nlohmann::ordered_json json = report::step_json(ours, peers);
    json["model"] = arguments.size;
    json["batch"] = recipe.train.batch;
    json["device"] = bench.device_name();
    json["limit_bytes"] = recipe.plan.memory_bytes();
    json["reserved_peak_bytes"] = bench.reserved_peak_bytes();
    json["program_s"] = bench.measured().seconds;
    json["first_losses"] = bench.first_losses();
    if (plan.step_s > 0) {
      json["predicted"] = {{"step_s", plan.step_s},
                           {"peak_bytes", plan.most_peak_bytes()},
                           {"recomputed_forwards", plan.recomputed_forwards}};
    }
    if (traced) {
      const report::KernelBreakdown groups{.rows = traced->groups,
                                           .num_steps = traced->kernels.num_steps};
      json["groups"] = report::kernel_json(groups).at("kernels");
      json["kernels"] = report::kernel_json(traced->kernels);
    }
    std::printf("%s\n", json.dump().c_str());
    return;
  }
  std::printf("%s, batch %lld x %lld, %s, on %s\n\n%s",
              model_text(arguments, recipe).c_str(),
              static_cast<long long>(recipe.train.batch),
              static_cast<long long>(recipe.model.context),
              recipe.train.precision.c_str(),
              bench.device_name().c_str(),
              report::step_text(ours, peers).c_str());
  std::printf("reserved by the allocator: at most %s; the program takes %.2f ms of a step\n",
              format_bytes(bench.reserved_peak_bytes()).c_str(),
              1e3 * bench.measured().seconds);
  if (plan.step_s > 0) {
    std::printf(
        "predicted: %.1f ms (measured %.4f times that), peak %s (measured %.4f times that)\n",
        1e3 * plan.step_s,
        ours.step_s / plan.step_s,
        format_bytes(plan.most_peak_bytes()).c_str(),
        static_cast<double>(ours.peak_bytes) / static_cast<double>(plan.most_peak_bytes()));
  }
  if (traced) {
    std::printf("\n%s\n%s",
                report::group_text(traced->groups, traced->kernels.num_steps, ours.watts).c_str(),
                report::kernel_text(traced->kernels, 40).c_str());
  }
}

int bench_step(const StepArguments& arguments) {
  config::Recipe recipe = step_recipe(arguments);
  config::validate(recipe);
  train::prepare_process(recipe);
  install_interrupt_handler();
  train::StepBench bench(recipe, arguments.predicts || recipe.plan.memory_bytes() > 0);
  bench.run(arguments.warm_s);

  const std::string script = find_peer_script(arguments, recipe);
  std::vector<std::string> peers = wanted_peers(arguments);
  if (script.empty() && !peers.empty()) {
    log_warning("bench/",
                peer_script_name(recipe.model),
                " was not found, so no PyTorch beside; name it with --peer-script");
    peers.clear();
  }
  Sum ours;
  std::vector<report::StepFigures> peer_figures;
  for (const std::string& peer : peers) {
    try {
      peer_figures.push_back(run_beside(arguments, recipe, peer, script, bench, ours));
    } catch (const PeerError& error) {
      log_warning("no figures of torch ", peer, ": ", error.what());
    } catch (const nlohmann::json::exception& error) {  // of an answer that lacks something
      log_warning("no figures of torch ", peer, ": ", error.what());
    }
  }
  if (ours.seconds == 0) {  // no peer, or none that ran
    for (int64_t round = 0; round < arguments.rounds && !was_interrupted(); ++round) {
      add_window(ours, recipe, bench.run(arguments.window_s));
    }
  }
  if (ours.seconds == 0) {
    throw Error(ExitCode::Negative,
                cat("bench was stopped by ", interrupt_name(), " before its first window"));
  }
  ours.peak_bytes = bench.peak_bytes();
  const report::StepFigures figures = ours.figures("penstock", recipe);

  std::optional<TracedSteps> traced;
  if (arguments.shows_kernels && recipe.run.device == "cuda") {
    traced = trace_steps(recipe, bench);
  }
  print_result(arguments, recipe, bench, figures, peer_figures, traced);
  return 0;
}

}  // namespace

void add_bench_command(Command& app) {
  Command bench = app.add_command("bench", "measure: steps next to PyTorch, sums over ranks");
  bench.needs_command();
  add_bench_allreduce_command(bench);
  Command command = bench.add_command("step", "a training step, in tokens a second");
  const auto arguments = std::make_shared<StepArguments>();
  command.add("--size", arguments->size, "which size of the family")
      .one_of(size_names())
      .shows_default();
  command.add("--batch", arguments->batch, "sequences a step; 0: the size's usual one")
      .in_range(int64_t{0}, int64_t{10'000'000})
      .shows_default();
  command
      .add_repeated("--set",
                    arguments->settings,
                    "set a recipe key, as in --set plan.memory=20GiB; may be given several times")
      .named("KEY=VALUE");
  command
      .add("--peers",
           arguments->peers,
           "PyTorch's ways to run beside, separated by commas: eager, compile, each with "
           "options as in eager+recompute=all; auto: compile and eager; none")
      .shows_default();
  command.add("--python", arguments->python, "a Python that has torch").shows_default();
  command
      .add("--peer-script",
           arguments->peer_script,
           cat("the peer; empty: bench/", peer_script_name({})))
      .named("FILE");
  command.add("--window", arguments->window_s, "seconds of a measured window")
      .in_range(0.001, 86400.0)
      .shows_default();
  command.add("--warm", arguments->warm_s, "seconds of steps before the first window")
      .in_range(0.0, 86400.0)
      .shows_default();
  command.add("--rounds", arguments->rounds, "windows of each, in turns")
      .in_range(int64_t{1}, int64_t{1'000'000})
      .shows_default();
  command.add_flag("--kernels",
                   arguments->shows_kernels,
                   "milliseconds by kind of work, beside the floor, and by kernel");
  command.add_flag("--predict", arguments->predicts, "measure the layers and predict the step");
  command.add_flag("--json", arguments->as_json, "write the result to standard output as JSON");
  command.runs([arguments] { return bench_step(*arguments); });
}

}  // namespace penstock::app
