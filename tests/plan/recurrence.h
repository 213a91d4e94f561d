// The recurrence of the solver, written down as it stands in the literature (algorithms notes, 1.3)
// and evaluated slowly: memory in bytes, seconds in doubles, nothing shared with the solver.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>

#include "penstock/plan/cost_table.h"

namespace penstock::test {

class Recurrence {
 public:
  // WholeSegment is the literature's: a sweep from i needs room for all forwards up to the end of
  // the segment. UntilStop counts those that it runs; they differ only where keeping a layer takes
  // less room than running it without.
  enum class SweepGuard { WholeSegment, UntilStop };

  explicit Recurrence(const plan::CostTable& table, SweepGuard guard = SweepGuard::WholeSegment)
      : table_(table), last_(static_cast<int>(table.layers.size())), guard_(guard) {}

  // Infinite where nothing fits. `limit` counts the chain's input.
  double seconds(int64_t limit) { return table_.loss.seconds + cost(0, last_, limit - size(0)); }
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

 private:
  const plan::LayerCost& layer(int i) const { return table_.layers[static_cast<size_t>(i)]; }
  int64_t size(int i) const {
    return i == 0 ? table_.input_bytes() : i > last_ ? 0 : layer(i - 1).output_bytes;
  }

  int64_t gradient(int i) const {
    return i == 0 ? layer(0).input_gradient() : i > last_ ? 0 : layer(i - 1).output_gradient();
  }

  // N(i, l)
  int64_t sweep_need(int i, int l, int j) const {
    int64_t most = size(i + 1) + layer(i).forward_extra_bytes;
    const int end = guard_ == SweepGuard::WholeSegment ? l : j;
    for (int k = i + 1; k < end; ++k) {
      most = std::max(most, size(k) + size(k + 1) + layer(k).forward_extra_bytes);
    }
    return gradient(l + 1) + most;
  }

  // A(i, l)
  int64_t keep_need(int i, int l, const plan::SaveModeCost& keep) const {
    const int64_t state = keep.state_bytes(size(i + 1));
    const bool leaves_output_out = i == l && !keep.needs_output;
    const int64_t forward = leaves_output_out ? state + keep.recompute_extra_bytes
                                              : keep.saved_bytes + keep.forward_extra_bytes;
    return std::max(gradient(l + 1) + forward,
                    gradient(i) + gradient(i + 1) + state + keep.backward_extra_bytes);
  }

  double cost(int i, int l, int64_t bytes) {
    if (i == last_) {
      return bytes >= gradient(last_) + table_.loss.extra_bytes ? 0 : kInfinity;
    }
    const auto [found, is_new] = known_.try_emplace({i, l, bytes}, kInfinity);
    if (is_new) {
      const double result = compute(i, l, bytes);
      known_[{i, l, bytes}] = result;
      return result;
    }
    return found->second;
  }

  double compute(int i, int l, int64_t bytes) {
    double best = kInfinity;
    for (const plan::SaveModeCost& keep : layer(i).modes) {
      if (bytes < keep_need(i, l, keep)) {
        continue;
      }
      best = std::min(
          best,
          i == l ? (keep.needs_output ? keep.forward_s : keep.recompute_s) + keep.backward_s
                 : keep.forward_s + keep.backward_s + cost(i + 1, l, bytes - keep.saved_bytes));
    }
    double swept = 0;
    for (int j = i + 1; j <= l; ++j) {
      swept += layer(j - 1).forward_s;
      if (bytes >= sweep_need(i, l, j) && bytes >= size(j)) {
        best = std::min(best, swept + cost(j, l, bytes - size(j)) + cost(i, j - 1, bytes));
      }
    }
    return best;
  }

  const plan::CostTable& table_;
  const int last_;
  const SweepGuard guard_;
  std::map<std::tuple<int, int, int64_t>, double> known_;
};

}  // namespace penstock::test
