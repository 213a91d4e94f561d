#include "penstock/plan/remedy.h"

#include "penstock/base/text.h"

namespace penstock::plan {

namespace {

int64_t half(int64_t bytes) {
  return bytes >= 0 ? (bytes + 1) / 2 : bytes / 2;
}

void halve(SaveModeCost& mode, int64_t output_bytes) {
  mode.forward_s /= 2;
  mode.backward_s /= 2;
  mode.recompute_s /= 2;
  // The rest apart from the output, so that rounding leaves the output within what is saved.
  mode.saved_bytes = half(mode.saved_bytes - output_bytes) + half(output_bytes);
  mode.forward_extra_bytes = half(mode.forward_extra_bytes);
  mode.backward_extra_bytes = half(mode.backward_extra_bytes);
  mode.recompute_extra_bytes = half(mode.recompute_extra_bytes);
}

// Seconds and activations go with the samples of a micro-batch; weights and state do not.
CostTable half_micro_batch(CostTable table) {
  for (LayerCost& layer : table.layers) {
    for (SaveModeCost& mode : layer.modes) {
      halve(mode, layer.output_bytes);
    }
    layer.forward_s /= 2;
    layer.input_bytes = half(layer.input_bytes);
    layer.output_bytes = half(layer.output_bytes);
    for (int64_t* gradient : {&layer.input_gradient_bytes, &layer.output_gradient_bytes}) {
      *gradient = *gradient < 0 ? *gradient : half(*gradient);
    }
    layer.forward_extra_bytes = half(layer.forward_extra_bytes);
  }
  table.loss.seconds /= 2;
  table.loss.extra_bytes = half(table.loss.extra_bytes);
  table.target_bytes = half(table.target_bytes);
  return table;
}

Remedy consider(std::string change, const CostTable& costs, const config::PlanOptions& options) {
  const Outcome result = make_plan({.options = options}, costs, Machine());
  return {std::move(change), result.most_least_bytes(), result.is_feasible, result.step_s};
}

}  // namespace

std::vector<Remedy> find_remedies(const CostTable& costs, const Outcome& outcome) {
  const config::PlanOptions& options = outcome.plan.options;
  std::vector<Remedy> remedies;
  if (options.recompute != recompute_name(Recompute::Rotor)) {
    config::PlanOptions changed = options;
    changed.recompute = recompute_name(Recompute::Rotor);
    remedies.push_back(consider("recompute = \"rotor\"", costs, changed));
  }
  config::PlanOptions changed = options;
  changed.micro_batches *= 2;
  remedies.push_back(consider(cat("half the micro-batch, micro_batches = ", changed.micro_batches),
                              half_micro_batch(costs),
                              changed));
  return remedies;
}

}  // namespace penstock::plan
