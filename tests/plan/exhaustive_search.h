// The truth about a short chain: Dijkstra's search over every state of memory that some sequence of
// operations can reach. It knows nothing of the solver's recurrence and of its restriction to
// schedules that hold a stored value until its backward.
//
// A state is: which activations are stored, which layers' states are kept, in which save mode, and
// how far the gradient has come. Any stored activation may be dropped at any time, except the input
// of a layer that is kept: autograd holds that. What a layer keeps goes with its backward: a
// forward that keeps is run once (to drop what it kept would be a forward that keeps nothing).
// Times and bytes must be small whole numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/plan/cost_table.h"

namespace penstock::test {

class ExhaustiveSearch {
 public:
  explicit ExhaustiveSearch(const plan::CostTable& table)
      : table_(table), layers_(static_cast<int>(table.layers.size())) {
    states_ = size_t{1} << (layers_ + 1);
    for (const plan::LayerCost& layer : table.layers) {
      radix_.push_back(states_);
      states_ *= layer.modes.size() + 1;
    }
    gradient_radix_ = states_;
    states_ *= static_cast<size_t>(layers_) + 2;
  }

  // The least time within `limit`, which covers all that the micro-batch holds: its input, and its
  // targets until the loss. Nothing where no schedule fits.
  std::optional<int64_t> fastest(int64_t limit) const {
    return search([&](int64_t so_far, int64_t seconds, int64_t held) {
      return held <= limit ? so_far + seconds : kNever;
    });
  }

  // The least limit with any schedule.
  int64_t least_bytes() const {
    return *search([](int64_t so_far, int64_t, int64_t held) { return std::max(so_far, held); });
  }

 private:
  static constexpr int64_t kNever = -1;
  static constexpr int32_t kFar = std::numeric_limits<int32_t>::max();

  struct State {
    uint32_t stored = 1;    // bit i: x_i, beside what a kept layer holds of it
    std::vector<int> kept;  // per layer: 0 nothing, else the save mode + 1
    int gradient = 0;       // i: the gradient of x_i is there; layers + 1: the loss is to come
    int64_t bytes = 0;
  };

  const plan::LayerCost& layer(int i) const { return table_.layers[static_cast<size_t>(i)]; }
  int64_t size(int i) const { return i == 0 ? table_.input_bytes() : layer(i - 1).output_bytes; }
  int64_t gradient_size(int i) const {
    return i == 0 ? layer(0).input_gradient() : layer(i - 1).output_gradient();
  }
  const plan::SaveModeCost* kept(const State& state, int i) const {
    const int code = i < 0 || i >= layers_ ? 0 : state.kept[static_cast<size_t>(i)];
    return code == 0 ? nullptr : &layer(i).modes[static_cast<size_t>(code - 1)];
  }
  bool is_stored(const State& state, int i) const { return (state.stored >> i & 1) != 0; }
  // Kept with an output that backward needs, a layer holds a copy of it.
  bool has(const State& state, int i) const {
    const plan::SaveModeCost* before = kept(state, i - 1);
    return is_stored(state, i) || (before != nullptr && before->needs_output);
  }

  size_t index_of(const State& state) const {
    size_t index = state.stored + gradient_radix_ * static_cast<size_t>(state.gradient);
    for (int i = 0; i < layers_; ++i) {
      index +=
          radix_[static_cast<size_t>(i)] * static_cast<size_t>(state.kept[static_cast<size_t>(i)]);
    }
    return index;
  }

  void read_index(size_t index, State& state) const {
    state.stored = static_cast<uint32_t>(index & ((size_t{1} << (layers_ + 1)) - 1));
    state.gradient = static_cast<int>(index / gradient_radix_);
    index %= gradient_radix_;
    state.kept.assign(static_cast<size_t>(layers_), 0);
    for (int i = layers_ - 1; i >= 0; --i) {
      state.kept[static_cast<size_t>(i)] = static_cast<int>(index / radix_[static_cast<size_t>(i)]);
      index %= radix_[static_cast<size_t>(i)];
    }
    // The model's own input has no gradient that is stored.
    state.bytes = state.gradient > layers_ ? table_.target_bytes
                  : state.gradient > 0     ? gradient_size(state.gradient)
                                           : 0;
    for (int i = 0; i <= layers_; ++i) {
      state.bytes += is_stored(state, i) ? size(i) : 0;
      const plan::SaveModeCost* keep = kept(state, i);
      state.bytes += keep != nullptr ? keep->state_bytes(size(i + 1)) : 0;
    }
  }

  // `cost(so far, seconds, held)` is what a path costs with one more operation, or kNever. Costs
  // are whole and small, so a list of states per cost does for a queue.
  template <typename Cost>
  std::optional<int64_t> search(const Cost& cost) const {
    std::vector<int32_t> best(states_, kFar);
    std::vector<std::vector<size_t>> queue(1);
    const auto offer = [&](const State& state, int64_t total) {
      const size_t index = index_of(state);
      if (total == kNever || best[index] <= total) {
        return;
      }
      best[index] = static_cast<int32_t>(total);
      if (queue.size() <= static_cast<size_t>(total)) {
        queue.resize(static_cast<size_t>(total) + 1);
      }
      queue[static_cast<size_t>(total)].push_back(index);
    };
    State state;
    state.kept.assign(static_cast<size_t>(layers_), 0);
    state.gradient = layers_ + 1;
    offer(state, 0);
    for (size_t now = 0; now < queue.size(); ++now) {
      // The list may grow while it is read: drops cost nothing.
      for (size_t at = 0; at < queue[now].size(); ++at) {
        const size_t index = queue[now][at];
        if (best[index] != static_cast<int32_t>(now)) {
          continue;
        }
        read_index(index, state);
        if (state.gradient == 0) {
          return static_cast<int64_t>(now);
        }
        expand(state, [&](const State& next, double seconds, int64_t held) {
          PENSTOCK_CHECK(seconds == static_cast<double>(static_cast<int64_t>(seconds)),
                         "the search needs whole seconds");
          offer(next,
                cost(static_cast<int64_t>(now), static_cast<int64_t>(seconds), state.bytes + held));
        });
      }
    }
    return std::nullopt;
  }

  // Every operation that is possible now: to(state after, seconds, most bytes above those now).
  template <typename To>
  void expand(const State& state, const To& to) const {
    State next = state;
    if (state.gradient > layers_ && has(state, layers_)) {
      next.gradient = layers_;
      to(next, table_.loss.seconds, gradient_size(layers_) + table_.loss.extra_bytes);
      next = state;
    }
    // A forward of a layer that has gone backward helps nobody, so only those below are tried.
    for (int i = 0; i < std::min(layers_, state.gradient); ++i) {
      if (has(state, i)) {
        forwards(state, i, to);
      }
    }
    if (const int i = state.gradient - 1; i >= 0 && i < layers_ && kept(state, i) != nullptr) {
      const plan::SaveModeCost& keep = *kept(state, i);
      next.kept[static_cast<size_t>(i)] = 0;
      next.gradient = i;
      to(next, keep.backward_s, gradient_size(i) + keep.backward_extra_bytes);
      next = state;
    }
    drops(state, to);
  }

  template <typename To>
  void forwards(const State& state, int i, const To& to) const {
    State next = state;
    if (!has(state, i + 1)) {  // what is there need not be made again
      next.stored |= 1u << (i + 1);
      to(next, layer(i).forward_s, size(i + 1) + layer(i).forward_extra_bytes);
      next = state;
    }
    if (kept(state, i) != nullptr) {
      return;
    }
    for (size_t mode = 0; mode < layer(i).modes.size(); ++mode) {
      const plan::SaveModeCost& keep = layer(i).modes[mode];
      next.kept[static_cast<size_t>(i)] = static_cast<int>(mode) + 1;
      if (!keep.needs_output) {
        next.stored |= 1u << (i + 1);
      }
      to(next, keep.forward_s, keep.saved_bytes + keep.forward_extra_bytes);
      next = state;
      if (!keep.needs_output && state.gradient == i + 1) {
        // Forward and backward in one go, the output left out.
        const int64_t alone = keep.state_bytes(size(i + 1));
        next.gradient = i;
        to(next,
           keep.recompute_s + keep.backward_s,
           alone +
               std::max(keep.recompute_extra_bytes, gradient_size(i) + keep.backward_extra_bytes));
        next = state;
      }
    }
  }

  template <typename To>
  void drops(const State& state, const To& to) const {
    State next = state;
    for (int i = 0; i <= layers_; ++i) {
      const plan::SaveModeCost* before = kept(state, i - 1);
      const bool has_copy = before != nullptr && before->needs_output;
      if (is_stored(state, i) && (kept(state, i) == nullptr || has_copy)) {
        next.stored &= ~(1u << i);
        to(next, 0, 0);
        next = state;
      }
    }
  }

  const plan::CostTable& table_;
  const int layers_;
  size_t states_ = 1, gradient_radix_ = 1;
  std::vector<size_t> radix_;  // per layer, in the index of a state
};

}  // namespace penstock::test
