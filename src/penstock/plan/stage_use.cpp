#include "penstock/plan/stage_use.h"

#include <algorithm>
#include <array>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

// Values are made and read in the order of the operations, and freed by the step that uses them
// last; what nobody here reads (it is sent) by the one that makes it.
class Replay {
 public:
  Replay(const CostTable& table, int32_t first, int32_t end, bool splits)
      : table_(table),
        first_(first),
        end_(end),
        is_last_(end == static_cast<int32_t>(table.layers.size())),
        splits_(splits) {
    const size_t layers = static_cast<size_t>(end - first);
    activation_.assign(layers + 1, kNone);
    gradient_.assign(layers + 1, kNone);
    saved_.assign(layers, kNone);
    output_.assign(layers, kNone);
    work_.assign(layers, kNone);
    way_.assign(layers, 0);
  }

  StageUse run(const StageOperations& operations) {
    begin_phase(Part::Forward);
    give(activation_[0] = make(layer(first_).input_bytes));
    if (is_last_) {
      give(targets_ = make(table_.target_bytes));
    }
    add_all(operations.forward);
    begin_phase(Part::Backward);
    if (!is_last_) {
      give(gradient_.back() = make(layer(end_ - 1).output_gradient()));
    }
    add_all(operations.backward);
    begin_phase(Part::Weight);
    for (int32_t i = end_ - 1; splits_ && i >= first_; --i) {
      use(work_[at(i)]);
      step({.seconds = layer(i).weight_half_s(kept_way(i)),
            .working_bytes = layer(i).weight_extra_bytes});
    }
    return measure();
  }

 private:
  using Id = int32_t;
  static constexpr Id kNone = -1;
  enum class Part { Forward, Backward, Weight };
  struct Step {
    double seconds = 0;
    int64_t working_bytes = 0;
    std::vector<Id> makes = {};
    Part part = Part::Forward;
  };

  size_t at(int32_t i) const { return static_cast<size_t>(i - first_); }
  const LayerCost& layer(int32_t i) const { return table_.layers[static_cast<size_t>(i)]; }
  const KeepCost& kept_way(int32_t i) const {
    return layer(i).ways[static_cast<size_t>(way_[at(i)])];
  }

  void begin_phase(Part part) { part_ = part; }
  Id make(int64_t bytes) {
    bytes_.push_back(bytes);
    last_use_.push_back(steps_.size());
    return static_cast<Id>(bytes_.size() - 1);
  }
  // By the step that is added next.
  void use(Id id) {
    PENSTOCK_CHECK(id != kNone, "operations use what nothing has made");
    last_use_[static_cast<size_t>(id)] = steps_.size();
  }
  void step(Step one) {
    one.part = part_;
    lead_s_ += part_ == Part::Backward && !needs_gradient_ ? one.seconds : 0;
    steps_.push_back(std::move(one));
  }
  void give(Id id) { step({.working_bytes = bytes_[static_cast<size_t>(id)], .makes = {id}}); }

  void add_all(const Operations& operations) {
    for (size_t i = 0; i < operations.size(); ++i) {
      add(operations[i], leaves_output_out(table_, operations, i));
    }
  }

  void add(const Operation& operation, bool without_output) {
    switch (operation.kind) {
      case OperationKind::ForwardAll:
        return add_keeping_forward(operation.layer, operation.way, without_output);
      case OperationKind::ForwardKeepInput:
      case OperationKind::ForwardDrop:
        return add_forward(operation.layer);
      case OperationKind::Loss:
        return add_loss();
      case OperationKind::Backward:
        return add_backward(operation.layer);
    }
  }

  void add_forward(int32_t i) {
    const LayerCost& cost = layer(i);
    use(activation_[at(i)]);
    const Id output = activation_[at(i) + 1] = make(cost.output_bytes);
    step({.seconds = cost.forward_s,
          .working_bytes = cost.output_bytes + cost.forward_extra_bytes,
          .makes = {output}});
  }

  void add_keeping_forward(int32_t i, int32_t way, bool without_output) {
    way_[at(i)] = way;
    const int64_t output_bytes = layer(i).output_bytes;
    const KeepCost& keep = kept_way(i);
    use(activation_[at(i)]);
    const Id saved = saved_[at(i)] = make(keep.saved_bytes - output_bytes);
    if (without_output) {
      return step({.seconds = keep.recompute_s,
                   .working_bytes = keep.saved_bytes - output_bytes + keep.recompute_extra_bytes,
                   .makes = {saved}});
    }
    const Id output = activation_[at(i) + 1] = output_[at(i)] = make(output_bytes);
    step({.seconds = keep.forward_s,
          .working_bytes = keep.saved_bytes + keep.forward_extra_bytes,
          .makes = {saved, output}});
  }

  void add_loss() {
    use(activation_.back());
    use(targets_);
    needs_gradient_ = true;
    const int64_t bytes = layer(end_ - 1).output_gradient();
    gradient_.back() = make(bytes);
    step({.seconds = table_.loss.seconds,
          .working_bytes = bytes + table_.loss.extra_bytes,
          .makes = {gradient_.back()}});
  }

  void add_backward(int32_t i) {
    const LayerCost& cost = layer(i);
    const KeepCost& keep = kept_way(i);
    needs_gradient_ = true;
    for (const Id id : {activation_[at(i)], saved_[at(i)], gradient_[at(i) + 1]}) {
      use(id);
    }
    if (keep.needs_output) {
      use(output_[at(i)]);
    }
    Step backward{.seconds = splits_ ? cost.input_half_s(keep) : keep.backward_s,
                  .working_bytes = cost.input_gradient() + keep.backward_extra_bytes};
    if (i > 0) {
      backward.makes.push_back(gradient_[at(i)] = make(cost.input_gradient()));
    }
    if (splits_) {
      backward.makes.push_back(work_[at(i)] = make(cost.weight_half_bytes()));
      backward.working_bytes = cost.input_gradient() + cost.input_half_extra_bytes(keep);
    }
    step(std::move(backward));
  }

  StageUse measure() const {
    std::vector<int64_t> freed(steps_.size(), 0);
    for (size_t id = 0; id < bytes_.size(); ++id) {
      freed[last_use_[id]] += bytes_[id];
    }
    struct PartUse {
      int64_t peak = 0, left = 0;
      double seconds = 0;
    };
    std::array<PartUse, 3> parts;
    int64_t live = 0;
    for (size_t i = 0; i < steps_.size(); ++i) {
      PartUse& part = parts[static_cast<size_t>(steps_[i].part)];
      part.peak = std::max(part.peak, live + steps_[i].working_bytes);
      part.seconds += steps_[i].seconds;
      for (const Id id : steps_[i].makes) {
        live += bytes_[static_cast<size_t>(id)];
      }
      live -= freed[i];
      part.left = live;
    }
    const auto& [forward, backward, weight] = parts;
    return {.forward_peak = forward.peak,
            .held = forward.left,
            .backward_peak = backward.peak,
            .weight_held = backward.left,
            .weight_peak = weight.peak,
            .forward_s = forward.seconds,
            .backward_s = backward.seconds,
            .lead_s = lead_s_,
            .weight_s = weight.seconds};
  }

  const CostTable& table_;
  const int32_t first_, end_;
  const bool is_last_, splits_;
  Part part_ = Part::Forward;
  bool needs_gradient_ = false;  // has come to an operation that does
  double lead_s_ = 0;
  std::vector<Step> steps_;
  std::vector<int64_t> bytes_;    // of each value
  std::vector<size_t> last_use_;  // of each value: the step that frees it
  std::vector<Id> activation_, gradient_, saved_, output_, work_;  // newest of each layer
  std::vector<int32_t> way_;
  Id targets_ = kNone;
};

}  // namespace

StageUse use_of(const CostTable& table,
                const std::vector<int32_t>& cuts,
                int32_t stage,
                const StageOperations& operations,
                bool splits) {
  const size_t at = static_cast<size_t>(stage);
  return Replay(table, cuts[at], cuts[at + 1], splits).run(operations);
}

int64_t recomputed_forwards(const std::vector<int32_t>& cuts,
                            int32_t stage,
                            const StageOperations& operations) {
  const size_t at = static_cast<size_t>(stage);
  const auto forwards = [](const Operations& list) {
    return std::count_if(list.begin(), list.end(), [](const Operation& operation) {
      return operation.kind != OperationKind::Loss && operation.kind != OperationKind::Backward;
    });
  };
  return forwards(operations.forward) + forwards(operations.backward) - (cuts[at + 1] - cuts[at]);
}

}  // namespace penstock::plan
