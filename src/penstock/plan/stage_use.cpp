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
    mode_.assign(layers, 0);
    carried_at_ = program::carried_by_layer(table.carried_elements(),
                                            static_cast<int32_t>(table.layers.size()));
    carried_.assign(table.carried.size(), kNone);
    carried_gradient_.assign(table.carried.size(), kNone);
    read_by_input_.resize(layers);
  }

  StageUse run(const StageOperations& operations) {
    begin_phase(Part::Forward);
    give(activation_[0] = make(layer(first_).input_bytes));
    if (is_last_) {
      give(targets_ = make(table_.target_bytes));
    }
    for_carried([&](size_t element, const program::Carried& one) {
      if (one.born < first_) {
        give(carried_[element] = make(table_.carried[element].bytes));
      }
    });
    add_all(operations.forward);
    for_carried([&](size_t element, const program::Carried& one) {
      if (one.born >= 0 && goes_on(one)) {
        goes_on_.push_back(carried_[element]);
      }
    });
    begin_phase(Part::Backward);
    if (!is_last_) {
      give(gradient_.back() = make(layer(end_ - 1).output_gradient()));
    }
    for_carried([&](size_t element, const program::Carried& one) {
      if (one.has_gradient && goes_on(one)) {
        give(carried_gradient_[element] = make(table_.carried[element].gradient_bytes));
      }
    });
    add_all(operations.backward);
    for_carried([&](size_t element, const program::Carried& one) {
      if (one.has_gradient && one.born < first_) {  // it leaves with the end of the phase
        last_use_[static_cast<size_t>(carried_gradient_[element])] = steps_.size() - 1;
      }
    });
    begin_phase(Part::Weight);
    for (int32_t i = end_ - 1; splits_ && i >= first_; --i) {
      use(work_[at(i)]);
      for (const Id id : read_by_input_[at(i)]) {
        use(id);
      }
      step({.seconds = layer(i).weight_gradient_s(kept_mode(i)),
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
  const SaveModeCost& kept_mode(int32_t i) const {
    return layer(i).modes[static_cast<size_t>(mode_[at(i)])];
  }

  // Those that the stage makes or reads.
  template <typename Visit>
  void for_carried(const Visit& visit) const {
    for (size_t element = 0; element < table_.carried.size(); ++element) {
      if (table_.carried[element].is_touched_by(first_, is_last_ ? end_ + 1 : end_)) {
        visit(element, table_.carried[element].element);
      }
    }
  }
  // To readers at later stages.
  bool goes_on(const program::Carried& one) const {
    return !is_last_ && one.readers.back() >= end_;
  }
  const program::CarriedAt& carried_at(int32_t i) const {
    return carried_at_[static_cast<size_t>(i)];
  }
  std::vector<Id> use_carried(int32_t i) {
    std::vector<Id> read;
    for (const int32_t element : carried_at(i).reads) {
      read.push_back(carried_[static_cast<size_t>(element)]);
      use(read.back());
    }
    return read;
  }
  void make_carried(int32_t i, Step& forward) {
    for (const int32_t element : carried_at(i).makes) {
      const auto number = static_cast<size_t>(element);
      forward.makes.push_back(carried_[number] = make(table_.carried[number].bytes));
      forward.working_bytes += table_.carried[number].bytes;
    }
  }
  void add_to_carried_gradients(int32_t i, Step& work) {
    for (const int32_t element : carried_at(i).reads) {
      const auto number = static_cast<size_t>(element);
      const program::Carried& one = table_.carried[number].element;
      if (one.has_gradient && i == one.readers.back()) {
        carried_gradient_[number] = make(table_.carried[number].gradient_bytes);
        work.makes.push_back(carried_gradient_[number]);
      } else if (one.has_gradient) {
        use(carried_gradient_[number]);
      }
    }
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
        return add_keeping_forward(operation.layer, operation.mode, without_output);
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
    use_carried(i);
    const Id output = activation_[at(i) + 1] = make(cost.output_bytes);
    Step forward{.seconds = cost.forward_s,
                 .working_bytes = cost.output_bytes + cost.forward_extra_bytes,
                 .makes = {output}};
    make_carried(i, forward);
    step(std::move(forward));
  }

  void add_keeping_forward(int32_t i, int32_t mode, bool without_output) {
    mode_[at(i)] = mode;
    const int64_t output_bytes = layer(i).output_bytes;
    const SaveModeCost& keep = kept_mode(i);
    use(activation_[at(i)]);
    use_carried(i);
    const Id saved = saved_[at(i)] = make(keep.saved_bytes - output_bytes);
    if (without_output) {
      return step({.seconds = keep.recompute_s,
                   .working_bytes = keep.saved_bytes - output_bytes + keep.recompute_extra_bytes,
                   .makes = {saved}});
    }
    const Id output = activation_[at(i) + 1] = output_[at(i)] = make(output_bytes);
    Step forward{.seconds = keep.forward_s,
                 .working_bytes = keep.saved_bytes + keep.forward_extra_bytes,
                 .makes = {saved, output}};
    make_carried(i, forward);
    step(std::move(forward));
  }

  void add_loss() {
    use(activation_.back());
    use(targets_);
    needs_gradient_ = true;
    const int64_t bytes = layer(end_ - 1).output_gradient();
    gradient_.back() = make(bytes);
    Step loss{.seconds = table_.loss.seconds,
              .working_bytes = bytes + table_.loss.extra_bytes,
              .makes = {gradient_.back()}};
    use_carried(end_);
    add_to_carried_gradients(end_, loss);
    step(std::move(loss));
  }

  void add_backward(int32_t i) {
    const LayerCost& cost = layer(i);
    const SaveModeCost& keep = kept_mode(i);
    needs_gradient_ = true;
    for (const Id id : {activation_[at(i)], saved_[at(i)], gradient_[at(i) + 1]}) {
      use(id);
    }
    if (keep.needs_output) {
      use(output_[at(i)]);
    }
    const std::vector<Id> read = use_carried(i);
    for (const int32_t element : carried_at(i).makes) {
      const auto number = static_cast<size_t>(element);
      if (keep.needs_output) {
        use(carried_[number]);
      }
      if (table_.carried[number].element.has_gradient) {
        use(carried_gradient_[number]);
      }
    }
    for (const Id id : goes_on_) {
      use(id);
    }
    goes_on_.clear();
    Step backward{.seconds = splits_ ? cost.input_gradient_s(keep) : keep.backward_s,
                  .working_bytes = cost.input_gradient() + keep.backward_extra_bytes};
    if (i > 0) {
      backward.makes.push_back(gradient_[at(i)] = make(cost.input_gradient()));
    }
    if (splits_) {
      backward.makes.push_back(work_[at(i)] = make(cost.weight_work_bytes()));
      backward.working_bytes = cost.input_gradient() + cost.input_gradient_extra_bytes(keep);
      read_by_input_[at(i)] = read;
    }
    add_to_carried_gradients(i, backward);
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
      if (!table_.carried.empty()) {  // gradients that no table's extra has counted
        part.peak = std::max(part.peak, live);
      }
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
  std::vector<int32_t> mode_;
  Id targets_ = kNone;
  std::vector<program::CarriedAt> carried_at_;  // by layer, then the loss
  std::vector<Id> carried_, carried_gradient_;  // newest of each element
  std::vector<Id> goes_on_;                     // as they were when the forward ended
  std::vector<std::vector<Id>> read_by_input_;  // by layer: what the weight gradient needs, too
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
