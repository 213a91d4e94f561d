#include "penstock/train/asynchronous.h"

#include <algorithm>
#include <cmath>

namespace penstock::train {

int64_t most_steps_at_once(const config::Recipe& recipe) {
  return recipe.plan.is_asynchronous() ? std::min(recipe.plan.flush_every, recipe.train.steps) : 1;
}

int64_t steps_at_once(const config::Recipe& recipe, int64_t step) {
  const config::PlanOptions& plan = recipe.plan;
  if (!plan.is_asynchronous() || step < plan.sync_steps) {
    return 1;
  }
  return std::min(plan.flush_every - step % plan.flush_every, recipe.train.steps - step);
}

double rate_factor(const config::PlanOptions& plan, int64_t rank, int64_t step) {
  if (plan.schedule != "pipemare" || step >= plan.anneal_steps) {
    return 1;
  }
  const double tau = static_cast<double>(2 * (plan.pipeline - 1 - rank) + 1) /
                     static_cast<double>(plan.micro_batches);
  const double left = 1 - static_cast<double>(step) / static_cast<double>(plan.anneal_steps);
  return std::pow(std::max(1.0, tau), -left);
}

}  // namespace penstock::train
