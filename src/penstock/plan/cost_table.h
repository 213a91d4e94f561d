// What a chain costs on a device, for one micro-batch: seconds and bytes per layer. Measured by
// profile/, or read from a JSON file (docs/planning.md gives the fields).
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/plan/link_cost.h"
#include "penstock/program/program.h"

namespace penstock::plan {

// One save mode: a forward that keeps what its backward needs, and that backward.
struct SaveModeCost {
  std::string name = "all";
  double forward_s = 0;
  double backward_s = 0;
  int64_t saved_bytes = 0;          // lives between forward and backward; includes the output
  int64_t forward_extra_bytes = 0;  // forward's peak above what was live before and saved_bytes
  // Backward's peak above what was live before and the input's gradient. Negative where the layer
  // frees part of what it saved before it makes that gradient.
  int64_t backward_extra_bytes = 0;
  // Likewise of its input gradient, where backward is split; nothing: not known.
  std::optional<int64_t> backward_input_extra_bytes = {};
  bool needs_output = true;  // whether backward needs the output alive
  // Where it does not, a forward recomputed right before its backward leaves the output out.
  double recompute_s = 0;
  int64_t recompute_extra_bytes = 0;  // its peak above what was live before and what it saves

  // What lives between forward and backward when the output has been left out or freed.
  int64_t state_bytes(int64_t output_bytes) const {
    return needs_output ? saved_bytes : saved_bytes - output_bytes;
  }
};

struct LayerCost {
  std::string name;
  std::string kind;  // layers of one kind cost the same; empty: alone of its kind
  int64_t input_bytes = 0;
  int64_t output_bytes = 0;
  // Of the gradients, with all that travels beside them. Negative: as large as the tensor itself.
  int64_t input_gradient_bytes = -1;
  int64_t output_gradient_bytes = -1;
  double forward_s = 0;             // keeping nothing
  int64_t forward_extra_bytes = 0;  // keeping nothing: the peak above what was live and the output
  std::vector<SaveModeCost> modes;  // at least one; the first keeps most
  int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
  // The backward split into input gradient and weight gradient: the seconds of each, and the bytes
  // that the weight gradient needs from the end of the input gradient on. Negative: not known. Then
  // each takes half of the save mode's backward_s (or what the other leaves of it), and the bytes
  // are those of the layer's input and of the gradient of its output.
  double backward_input_s = -1, backward_weight_s = -1;
  int64_t weight_state_bytes = -1;
  int64_t weight_extra_bytes = 0;  // the weight gradient's peak above what was live before

  int64_t input_gradient() const {
    return input_gradient_bytes < 0 ? input_bytes : input_gradient_bytes;
  }
  int64_t output_gradient() const {
    return output_gradient_bytes < 0 ? output_bytes : output_gradient_bytes;
  }
  // What its backward reads and then frees: its state, and the gradient of its output.
  int64_t freed_by_backward(const SaveModeCost& mode) const {
    return mode.state_bytes(output_bytes) + output_gradient();
  }
  double weight_gradient_s(const SaveModeCost& mode) const {
    return backward_weight_s >= 0  ? backward_weight_s
           : backward_input_s >= 0 ? std::max(0.0, mode.backward_s - backward_input_s)
                                   : mode.backward_s / 2;
  }
  double input_gradient_s(const SaveModeCost& mode) const {
    // Known for the first save mode: what others take longer, they take in the input gradient.
    return backward_input_s >= 0
               ? std::max(0.0, backward_input_s + mode.backward_s - modes.front().backward_s)
           : backward_weight_s >= 0 ? std::max(0.0, mode.backward_s - backward_weight_s)
                                    : mode.backward_s / 2;
  }
  int64_t input_gradient_extra_bytes(const SaveModeCost& mode) const {
    // No less than what is there when it ends, above what it frees then.
    const int64_t freed = freed_by_backward(mode);
    const int64_t least = std::max(weight_work_bytes() - freed, -input_gradient());
    const int64_t unknown = weight_work_bytes() + std::max<int64_t>(0, mode.backward_extra_bytes);
    return std::max(least, mode.backward_input_extra_bytes.value_or(unknown));
  }
  int64_t weight_work_bytes() const {
    return weight_state_bytes < 0 ? input_bytes + output_gradient() : weight_state_bytes;
  }
};

// An element of the edges that more than the next layer reads. The bytes of layers' inputs and outputs,
// and of what they save, are without it.
struct CarriedCost {
  program::Carried element;
  int64_t bytes = 0;
  int64_t gradient_bytes = 0;  // 0: it has none

  int64_t all_bytes() const { return bytes + gradient_bytes; }
  // Whether layers first .. end - 1 make or read it.
  bool is_touched_by(int32_t first, int32_t end) const;
  bool operator==(const CarriedCost&) const = default;
};

// Forward and backward of the loss are one operation.
struct LossCost {
  std::string name = "loss";
  double seconds = 0;
  int64_t extra_bytes = 0;  // peak above what was live before and the gradient it makes
  int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;
};

struct CostTable {
  std::string description;  // model, precision, threads: for people
  std::vector<LayerCost> layers;
  std::vector<CarriedCost> carried;
  LossCost loss;
  int64_t target_bytes = 0;         // of a micro-batch
  std::vector<program::Held> held;  // all parameters, gradients, optimizer state
  double clear_s = 0;               // gradients to zero
  double step_s = 0;                // norm, clipping, optimizer
  int64_t step_extra_bytes = 0;
  LinkCost link = {};  // between ranks, where the table is of several; none: messages cost nothing

  int64_t held_bytes() const;
  std::vector<program::Carried> carried_elements() const;
  int64_t carried_bytes() const;  // of a micro-batch, with their gradients
  int64_t given_bytes() const;    // of a micro-batch: what the batch brings, without the targets
  int64_t input_bytes() const { return layers.front().input_bytes; }
};

std::string format_costs(const CostTable& table);  // JSON

// Throws ConfigError with the layer and field that is wrong. `origin` is the file's name.
CostTable parse_costs(std::string_view json, const std::string& origin);
CostTable read_costs(const std::filesystem::path& file);

}  // namespace penstock::plan
