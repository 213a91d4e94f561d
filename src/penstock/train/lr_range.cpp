#include "penstock/train/lr_range.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/units.h"
#include "penstock/data/loader.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/report/progress.h"
#include "penstock/run/executor.h"
#include "penstock/train/batch_tensors.h"
#include "penstock/train/machine.h"
#include "penstock/train/planning.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace {

constexpr double kLossScale = 1024;
constexpr double kSmoothing = 0.9;
constexpr double kExplosion = 4;

// Where the smoothed loss falls fastest over the logarithm of the rate, before its lowest point.
std::optional<double> steepest(const LrRange& range) {
  const auto lowest = std::min_element(range.smoothed.begin(), range.smoothed.end());
  const size_t end = static_cast<size_t>(lowest - range.smoothed.begin());
  double best_fall = 0;
  std::optional<double> best;
  constexpr size_t reach = 2;  // slopes over a few steps: a single one is noise
  for (size_t i = 0; i + reach <= end; ++i) {
    const double fall = range.smoothed[i] - range.smoothed[i + reach];
    if (fall > best_fall) {
      best_fall = fall;
      best = std::sqrt(range.rates[i] * range.rates[i + reach]);
    }
  }
  return best;
}

}  // namespace

LrRange test_lr_range(const config::Recipe& recipe, const LrRangeOptions& options) {
  if (options.highest <= options.lowest) {
    throw ConfigError(cat("--to ", options.highest, " is not above --from ", options.lowest));
  }
  const uint64_t seed = static_cast<uint64_t>(recipe.train.seed);
  const Subject& subject = family_subject();
  const data::Split split = subject.open_data(recipe);
  split.train->check(/*part=*/0, /*parts=*/1);
  const device::Device device = open_device(recipe);
  const memory::LimitScope limit(memory::current_account(), recipe.plan.memory_bytes());
  const model::Chain chain = subject.make_chain(recipe, device);
  const plan::Machine machine = find_machine(recipe);
  Planned planned = plan_run(recipe, chain, device, machine, {});
  model::Parameters parameters(chain, compute_type(recipe.train), seed, device);
  const auto optimizer = optim::make_optimizer(recipe.train, parameters);
  rehearse(recipe, chain, machine, {}, parameters, planned);
  run::Executor executor(planned.result.program, chain, parameters);
  load_start_weights(recipe.model, chain, parameters);
  data::Loader loader(split.train, {.seed = seed, .batch = recipe.train.batch});
  report::Progress progress({.title = "lr-range",
                             .total = options.steps,
                             .start = 0,
                             .plain_every = recipe.run.log_every,
                             .is_terminal = {}});

  // A fixed one: in the few steps of this test a scale would hardly move.
  const double loss_scale = recipe.train.precision == "float16" ? kLossScale : 1;
  LrRange range;
  double mean = 0;
  double lowest = INFINITY;
  bool goes_on = true;
  for (int64_t step = 0; step < options.steps && goes_on && !was_interrupted(); ++step) {
    const double share = static_cast<double>(step) / static_cast<double>(options.steps - 1);
    const double rate = options.lowest * std::pow(options.highest / options.lowest, share);
    const data::Batch batch = loader.next();
    const run::StepInput input{
        .batch = as_tensors(batch),
        .first_sample = batch.first_sample,
        .micro_batches = recipe.plan.micro_batches,
        .seed = seed,
        .step = step,
        .loss_scale = loss_scale,
        .updates = {{.rate = {.lr = rate}, .clip = recipe.train.clip, .loss_scale = loss_scale}}};
    const double loss = executor.run(input, *optimizer);
    goes_on = std::isfinite(loss) && executor.outcomes().back().was_applied;
    if (goes_on) {
      mean = kSmoothing * mean + (1 - kSmoothing) * loss;
      const double smoothed = mean / (1 - std::pow(kSmoothing, static_cast<double>(step + 1)));
      range.rates.push_back(rate);
      range.losses.push_back(loss);
      range.smoothed.push_back(smoothed);
      progress.update(step + 1, {{"lr", format_number(rate)}, {"loss", format_number(loss)}});
      lowest = std::min(lowest, smoothed);
      goes_on = smoothed <= kExplosion * lowest;
    }
  }
  progress.finish();
  range.suggested = range.rates.empty() ? std::nullopt : steepest(range);
  return range;
}

}  // namespace penstock::train
