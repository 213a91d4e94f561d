// Random chains, the same ones on every machine and with every standard library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "penstock/plan/cost_table.h"

#include "plan/small_chains.h"

namespace penstock::test {

// The engine's numbers are fixed by the standard; the library's distributions are not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}

  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(engine_() % static_cast<uint64_t>(most - least + 1));
  }
  bool chance(int64_t percent) { return between(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

// One save mode each, whole numbers of one digit. Which of the numbers vary and how much
// changes from chain to chain: what breaks a guard is seldom the average mix.
inline plan::CostTable small_chain(Dice& dice, int64_t layers) {
  const int64_t most_size = dice.between(1, 9);
  const int64_t most_kept = dice.chance(25) ? 0 : dice.between(1, 12);
  const int64_t most_forward_extra = dice.chance(40) ? 0 : dice.between(1, 6);
  const int64_t most_backward_extra = dice.chance(40) ? 0 : dice.between(1, 6);
  const int64_t most_seconds = dice.between(1, 9);
  std::vector<Stage> stages;
  for (int64_t i = 0; i < layers; ++i) {
    const int64_t size = dice.between(1, most_size);
    stages.push_back({.forward = static_cast<double>(dice.between(1, most_seconds)),
                      .backward = static_cast<double>(dice.between(1, most_seconds)),
                      .size = size,
                      .kept = size + dice.between(0, most_kept),
                      .forward_extra = dice.between(0, most_forward_extra),
                      .backward_extra = dice.between(0, most_backward_extra)});
  }
  return make_chain(dice.between(1, most_size), stages, dice.between(0, 4));
}

struct RichOptions {
  int64_t most_size = 9;  // bytes of an activation
  int64_t most_modes = 3;
  bool has_cheap_recompute = true;  // recompute_s below forward_s
  bool has_held = true;
  int64_t most_carried = 3;
};

// Elements that other layers than the next read: of the batch and of layers, with and without
// gradients, read by the loss, too.
inline std::vector<plan::CarriedCost> random_carried(Dice& dice,
                                                     int64_t layers,
                                                     int64_t most_size,
                                                     int64_t most) {
  std::vector<plan::CarriedCost> all;
  for (int64_t i = dice.between(0, most); i > 0; --i) {
    plan::CarriedCost one{.element = {.name = "element" + std::to_string(i)},
                          .bytes = dice.between(1, most_size)};
    program::Carried& element = one.element;
    element.born = dice.chance(35) ? -1 : static_cast<int32_t>(dice.between(0, layers - 1));
    const int64_t percent = dice.between(10, 90);
    for (int32_t reader = element.born + 1; reader <= layers; ++reader) {
      if (dice.chance(percent)) {
        element.readers.push_back(reader);
      }
    }
    element.has_gradient = element.born >= 0 && dice.chance(60);
    one.gradient_bytes = element.has_gradient ? dice.between(1, 2 * most_size) : 0;
    if (!element.readers.empty() && element.readers != std::vector{element.born + 1}) {
      all.push_back(std::move(one));
    }
  }
  return all;
}

// Everything that a cost table can say: several save modes, backwards that need no output and
// forwards that leave it out, backwards that free before they make, costs beside the chain.
inline plan::CostTable rich_chain(Dice& dice, int64_t layers, const RichOptions& options) {
  const int64_t unit = options.most_size;
  plan::CostTable table;
  int64_t input = dice.between(1, unit);
  int64_t input_gradient = dice.chance(60) ? -1 : dice.between(0, 2 * unit);
  for (int64_t i = 0; i < layers; ++i) {
    plan::LayerCost layer{.name = "layer" + std::to_string(i),
                          .input_bytes = input,
                          .output_bytes = dice.between(1, unit),
                          .input_gradient_bytes = input_gradient,
                          .output_gradient_bytes = dice.chance(60) ? -1 : dice.between(0, 2 * unit),
                          .forward_s = static_cast<double>(dice.between(1, 9)),
                          .forward_extra_bytes = dice.chance(50) ? 0 : dice.between(0, unit)};
    const int64_t modes = dice.between(1, options.most_modes);
    for (int64_t mode = 0; mode < modes; ++mode) {
      plan::SaveModeCost keep{
          .name = "mode" + std::to_string(mode),
          .forward_s = layer.forward_s + static_cast<double>(dice.between(0, 3)),
          .backward_s = static_cast<double>(dice.between(1, 9)),
          .saved_bytes = layer.output_bytes + dice.between(0, 2 * unit),
          .forward_extra_bytes = dice.chance(50) ? 0 : dice.between(0, unit),
          .needs_output = dice.chance(50)};
      // What a backward frees before it makes the input's gradient is at most what it reads and
      // frees: its state and the output's gradient.
      const int64_t most_free = std::min(layer.input_gradient(), layer.freed_by_backward(keep));
      keep.backward_extra_bytes =
          dice.chance(40) ? -dice.between(0, most_free) : dice.between(0, unit);
      keep.recompute_s = keep.forward_s;
      if (options.has_cheap_recompute && dice.chance(50)) {
        // Not so cheap that two forwards beat one: those have a test of their own.
        keep.recompute_s =
            static_cast<double>(dice.between(static_cast<int64_t>(keep.forward_s - layer.forward_s),
                                             static_cast<int64_t>(keep.forward_s)));
      }
      keep.recompute_extra_bytes = dice.between(0, keep.forward_extra_bytes);
      layer.modes.push_back(keep);
    }
    table.layers.push_back(layer);
    input = layer.output_bytes;
    input_gradient = layer.output_gradient();
  }
  table.loss.seconds = static_cast<double>(dice.between(0, 4));
  table.loss.extra_bytes = dice.between(0, unit);
  if (options.has_held) {
    table.target_bytes = dice.between(0, unit);
    table.held = {{"parameters", dice.between(0, 9 * unit)}, {"state", dice.between(0, unit)}};
    table.clear_s = static_cast<double>(dice.between(0, 3));
    table.step_s = static_cast<double>(dice.between(0, 3));
  }
  if (options.most_carried > 0 && dice.chance(50)) {
    table.carried = random_carried(dice, layers, unit, options.most_carried);
  }
  return table;
}

// What one micro-batch holds at most when every layer has its first save mode, its input counted,
// targets and what is held from step to step not.
inline int64_t keep_all_bytes(const plan::CostTable& table) {
  int64_t live = table.input_bytes(), peak = live;
  const auto hold = [&](int64_t working) { peak = std::max(peak, live + working); };
  for (const plan::LayerCost& layer : table.layers) {
    hold(layer.modes[0].saved_bytes + layer.modes[0].forward_extra_bytes);
    live += layer.modes[0].saved_bytes;
  }
  hold(table.layers.back().output_gradient() + table.loss.extra_bytes);
  live += table.layers.back().output_gradient();
  for (auto layer = table.layers.rbegin(); layer != table.layers.rend(); ++layer) {
    // An output that backward does not need has been freed by its last reader.
    const plan::SaveModeCost& keep = layer->modes[0];
    live -= keep.needs_output ? 0 : layer->output_bytes;
    hold(layer->input_gradient() + keep.backward_extra_bytes);
    live += layer->input_gradient() - layer->freed_by_backward(keep);
  }
  return peak;
}

}  // namespace penstock::test
