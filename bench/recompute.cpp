// Penstock's side of bench/recompute.py and bench/limits.py: a GPT-2 on random tokens, planned and run as told on standard
// input. Every answer is one line of JSON.
//   penstock_bench_recompute layers width heads context vocabulary batch threads [dropout]
//   plan BYTES | none | least   activation bytes allowed above weights, gradients and optimizer state
//   steps N                     seconds of N steps, and their measured activation peak
//   overhead N                  seconds of N steps by the executor and of N by a plain loop, taking turns
//   digest                      loss and a checksum of the gradients of one step on the first weights
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "penstock/base/checksum.h"
#include "penstock/config/recipe.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/run/executor.h"
#include "penstock/train/machine.h"
#include "penstock/train/planning.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/setup.h"

namespace {

using namespace penstock;
using nlohmann::json;

struct Side {
  explicit Side(const config::Recipe& recipe_)
      : recipe(recipe_),
        chain(model::make_chain(recipe.model, device::open_cpu())),
        parameters(chain, train::compute_type(recipe.train), /*seed=*/1),
        optimizer(optim::make_optimizer(recipe.train, parameters)),
        costs(
            train::measure_costs(recipe, chain, parameters, *optimizer, {.shows_progress = false})),
        holdings(plan::whole_holdings(
            train::model_sizes(recipe, chain), costs, train::find_machine(recipe))),
        held(holdings.ranks.front().bytes()) {
    draw_tokens();
    outside = memory::usage().current_bytes - held;  // the batch itself
  }

  // New ones for each turn: a batch that is learnt by heart has gradients that are slow to compute with.
  void draw_tokens() {
    const at::Tensor tokens = at::randint(
        recipe.model.vocabulary, {recipe.train.batch, recipe.model.context + 1}, at::kLong);
    inputs.reset();
    targets.reset();
    inputs = tokens.narrow(1, 0, recipe.model.context).contiguous();
    targets = tokens.narrow(1, 1, recipe.model.context).contiguous();
  }

  json plan(const std::string& limit) {
    plan::OneRankRequest request{.recompute = plan::Recompute::Rotor, .holdings = holdings};
    if (limit == "none") {
      request.recompute = plan::Recompute::None;
    } else if (limit == "least") {
      request.limit_bytes = 1;
      request.limit_bytes = plan::solve_one_rank(costs, request).least_bytes;
    } else {
      request.limit_bytes = held + std::atoll(limit.c_str());
    }
    result = plan::solve_one_rank(costs, request);
    const int64_t least = result.least_bytes - held;
    if (!result.is_feasible) {
      return {{"feasible", false}, {"least_activation", least}};
    }
    executor = std::make_unique<run::Executor>(result.program, chain, parameters);
    memory::set_limit(memory::process_account(),
                      request.limit_bytes > 0 ? request.limit_bytes + outside : 0);
    return {{"feasible", true},
            {"activation_limit", request.limit_bytes > 0 ? request.limit_bytes - held : 0},
            {"predicted_activation_peak", result.peak_bytes - held},
            {"predicted_step_s", result.step_s},
            {"predicted_peak", result.peak_bytes},
            {"resident", held},
            {"least_activation", least},
            {"recomputed_forwards", plan::recomputed_forwards(costs, result.plan.operations)}};
  }

  static run::UpdateSettings settings() { return {.rate = {.lr = 1e-3}, .clip = 1}; }

  run::StepInput input() {
    return {.batch = {{"inputs", inputs}, {"targets", targets}},
            .seed = 1,
            .step = step,
            .updates = {settings()}};
  }

  double timed_step() {
    const auto began = std::chrono::steady_clock::now();
    executor->run(input(), *optimizer);
    ++step;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

  double timed_plain_step() {
    const auto began = std::chrono::steady_clock::now();
    parameters.zero_gradients();
    run::accumulate_gradients(chain, parameters, input());
    optimizer->update(parameters, settings());
    ++step;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

  json steps(int count) {
    std::vector<double> seconds;
    draw_tokens();
    const memory::PeakMark mark;
    for (int i = 0; i < count; ++i) {
      seconds.push_back(timed_step());
    }
    return {{"seconds", seconds},
            {"activation_peak", mark.peak_bytes() - outside - held},
            {"peak", mark.peak_bytes() - outside}};
  }

  json overhead(int count) {
    std::vector<double> planned, plain;
    for (int i = 0; i < count; ++i) {
      planned.push_back(timed_step());
      plain.push_back(timed_plain_step());
    }
    return {{"executor", planned}, {"plain", plain}};
  }

  json digest() {
    at::manual_seed(5);
    draw_tokens();
    memory::set_limit(memory::process_account(), 0);  // these are weights beside the weights
    model::Parameters fresh(chain, train::compute_type(recipe.train), /*seed=*/1);
    run::Executor own(result.program, chain, fresh);
    run::NoStepper none;
    const double loss =
        own.run({.batch = {{"inputs", inputs}, {"targets", targets}}, .seed = 1, .step = 3}, none);
    const at::Tensor gradients = fresh.flat_gradients();
    return {{"loss", loss}, {"gradients", crc32c(gradients.const_data_ptr(), gradients.nbytes())}};
  }

  config::Recipe recipe;
  model::Chain chain;
  model::Parameters parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
  plan::CostTable costs;
  plan::Holdings holdings;
  int64_t held = 0;  // weights, gradients and optimizer state
  at::Tensor inputs, targets;
  int64_t outside = 0;
  int64_t step = 0;
  plan::OneRankAnswer result;
  std::unique_ptr<run::Executor> executor;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8 && argc != 9) {
    std::fprintf(
        stderr,
        "usage: penstock_bench_recompute layers width heads context vocabulary batch threads "
        "[dropout]\n");
    return 2;
  }
  config::Recipe recipe;
  recipe.model = {.layers = std::atoll(argv[1]),
                  .width = std::atoll(argv[2]),
                  .heads = std::atoll(argv[3]),
                  .context = std::atoll(argv[4]),
                  .vocabulary = std::atoll(argv[5]),
                  .dropout = argc == 9 ? std::atof(argv[8]) : 0};
  recipe.train.batch = std::atoll(argv[6]);
  recipe.run.threads = std::atoll(argv[7]);
  train::prepare_process(recipe);
  Side side(recipe);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command, argument;
    words >> command >> argument;
    json answer;
    if (command == "plan") {
      answer = side.plan(argument);
    } else if (command == "steps") {
      answer = side.steps(std::atoi(argument.c_str()));
    } else if (command == "overhead") {
      answer = side.overhead(std::atoi(argument.c_str()));
    } else if (command == "digest") {
      answer = side.digest();
    } else {
      answer = {{"error", "unknown command " + command}};
    }
    std::printf("%s\n", answer.dump().c_str());
    std::fflush(stdout);
  }
}
