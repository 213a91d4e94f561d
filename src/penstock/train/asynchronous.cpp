#include "penstock/train/asynchronous.h"

#include <algorithm>
#include <cmath>

namespace penstock::train {

int64_t most_steps_at_once(const config::Recipe& recipe) {
  int64_t most = 1;
  // The first that is drained at a multiple may be short, the ones after it are not.
  for (int64_t step = std::min(recipe.plan.sync_steps, recipe.train.steps), tries = 0;
       step < recipe.train.steps && tries < 2;
       ++tries) {
    const int64_t count = steps_at_once(recipe, step);
    most = std::max(most, count);
    step += count;
  }
  return most;
}

int64_t steps_at_once(const config::Recipe& recipe, int64_t step) {
  const config::PlanOptions& plan = recipe.plan;
  if (!plan.is_asynchronous() || step < plan.sync_steps) {
    return 1;
  }
  return std::min(plan.flush_every - step % plan.flush_every, recipe.train.steps - step);
}

double rate_factor(const config::PlanOptions& plan, int64_t stage, int64_t step) {
  const int64_t late_steps = step - plan.sync_steps;
  if (plan.schedule != "pipemare" || late_steps < 0 || late_steps >= plan.anneal_steps) {
    return 1;
  }
  const double tau = static_cast<double>(2 * (plan.pipeline - 1 - stage) + 1) /
                     static_cast<double>(plan.micro_batches);
  const double left = 1 - static_cast<double>(late_steps) / static_cast<double>(plan.anneal_steps);
  return std::pow(std::max(1.0, tau), -left);
}

}  // namespace penstock::train
