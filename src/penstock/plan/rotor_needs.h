// What the layers of a chain need in bytes, as ROTOR's recurrences see them. For the solvers alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "penstock/plan/cost_table.h"

namespace penstock::plan {

inline constexpr int64_t kNoSchedule = std::numeric_limits<int64_t>::max();

// What one save mode needs, in bytes, beside the input of its layer.
struct ModeNeed {
  int64_t kept = 0;          // x̄: lives until the backward
  int64_t forward = 0;       // peak of the forward
  int64_t backward = 0;      // peak of the backward, both gradients included
  int64_t last_forward = 0;  // peak of the forward when its backward comes next
  double overhead = 0;       // seconds above the layer's fastest mode
  double last_overhead = 0;  // the same when its backward comes next
};

// The chain as the recurrence sees it: layers 0 .. n-1, and the loss as layer n.
struct Needs {
  explicit Needs(const CostTable& table) : layers(static_cast<int32_t>(table.layers.size())) {
    sizes.push_back(table.input_bytes());
    gradients.push_back(table.layers.front().input_gradient());
    forward_until.push_back(0);
    for (const LayerCost& layer : table.layers) {
      add_layer(layer);
    }
    // The targets lie in memory until the loss, as the gradient that comes back to a segment does.
    gradients.push_back(table.target_bytes);
    loss = table.layers.back().output_gradient() + table.loss.extra_bytes + table.target_bytes;
  }

  int64_t size(int32_t i) const { return sizes[static_cast<size_t>(i)]; }
  int64_t gradient(int32_t i) const { return gradients[static_cast<size_t>(i)]; }
  const std::vector<ModeNeed>& mode(int32_t i) const { return modes[static_cast<size_t>(i)]; }
  double forward_between(int32_t first, int32_t end) const {
    return forward_until[static_cast<size_t>(end)] - forward_until[static_cast<size_t>(first)];
  }

  // Guards of the recurrence for layers i .. l, with the gradient of l's output held.
  int64_t keeping(int32_t i, int32_t l, const ModeNeed& need) const {
    return i == l ? std::max(gradient(l + 1) + need.last_forward, need.backward)
                  : std::max(gradient(l + 1) + need.forward, need.backward);
  }

  int32_t layers;
  std::vector<int64_t> sizes;         // of x_0 .. x_n
  std::vector<int64_t> gradients;     // of their gradients, and the targets
  std::vector<double> forward_until;  // sums of forward seconds, keeping nothing
  std::vector<int64_t> sweep;         // x_{i+1} and the forward's extra, keeping nothing
  std::vector<std::vector<ModeNeed>> modes;
  int64_t loss = 0;

 private:
  void add_layer(const LayerCost& layer) {
    double fastest = std::numeric_limits<double>::infinity();
    for (const SaveModeCost& keep : layer.modes) {
      fastest = std::min(fastest, keep.forward_s + keep.backward_s);
    }
    std::vector<ModeNeed> needs;
    for (const SaveModeCost& keep : layer.modes) {
      const int64_t state = keep.state_bytes(layer.output_bytes);
      ModeNeed need{.kept = keep.saved_bytes,
                    .forward = keep.saved_bytes + keep.forward_extra_bytes,
                    .backward = layer.input_gradient() + layer.freed_by_backward(keep) +
                                keep.backward_extra_bytes,
                    .overhead = keep.forward_s + keep.backward_s - fastest};
      need.last_forward = keep.needs_output ? need.forward : state + keep.recompute_extra_bytes;
      need.last_overhead =
          keep.needs_output ? need.overhead : keep.recompute_s + keep.backward_s - fastest;
      needs.push_back(need);
    }
    modes.push_back(std::move(needs));
    sizes.push_back(layer.output_bytes);
    gradients.push_back(layer.output_gradient());
    sweep.push_back(layer.output_bytes + layer.forward_extra_bytes);
    forward_until.push_back(forward_until.back() + layer.forward_s);
  }
};

// Peak of running layers i .. j-1 without keeping, with `held` bytes beside x_i, which is not
// counted.
class SweepPeak {
 public:
  SweepPeak(const Needs& needs, int32_t i, int64_t held)
      : needs_(needs),
        held_(held),
        peak_(held + needs.sweep[static_cast<size_t>(i)]),
        next_(i + 1) {}

  int64_t until(int32_t j) {
    for (; next_ < j; ++next_) {
      peak_ =
          std::max(peak_, held_ + needs_.size(next_) + needs_.sweep[static_cast<size_t>(next_)]);
    }
    return peak_;
  }

 private:
  const Needs& needs_;
  int64_t held_, peak_;
  int32_t next_;
};

// Of all sizes: memory in between makes no difference.
inline int64_t common_divisor(const Needs& needs) {
  int64_t divisor = 0;
  const auto take = [&](int64_t size) { divisor = std::gcd(divisor, size); };
  for (const auto* list : {&needs.sizes, &needs.gradients}) {
    for (const int64_t size : *list) {
      take(size);
    }
  }
  for (const int64_t size : needs.sweep) {
    take(size);
  }
  for (const auto& modes : needs.modes) {
    for (const ModeNeed& need : modes) {
      take(need.kept);
      take(need.forward);
      take(need.backward);
      take(need.last_forward);
    }
  }
  take(needs.loss);
  return std::max<int64_t>(1, divisor);
}

}  // namespace penstock::plan
