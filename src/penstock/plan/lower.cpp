#include "penstock/plan/lower.h"

#include <map>
#include <tuple>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::ValueId;
using program::ValueKind;

class Lowering {
 public:
  Lowering(const CostTable& table, int32_t micro_batches, int64_t limit_bytes) : table_(table) {
    program_.micro_batches = micro_batches;
    for (const LayerCost& layer : table.layers) {
      program::LayerInfo row{layer.name, {}};
      for (const KeepCost& way : layer.ways) {
        row.ways.push_back({way.name, way.needs_output});
      }
      program_.layers.push_back(std::move(row));
    }
    program_.ranks.push_back({.limit_bytes = limit_bytes, .residents = table.residents});
    for (int32_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      micro_batch_ = micro_batch;
      rank().given.push_back(make(ValueKind::Activation, 0, table.input_bytes()));
      rank().given.push_back(make(ValueKind::Targets, program_.loss_index(), table.target_bytes));
    }
  }

  program::Program run(const Operations& operations) {
    emit({.op = Op::Clear, .seconds = table_.clear_s});
    for (micro_batch_ = 0; micro_batch_ < program_.micro_batches; ++micro_batch_) {
      for (size_t i = 0; i < operations.size(); ++i) {
        add(operations[i], leaves_output_out(table_, operations, i));
      }
    }
    emit({.op = Op::Step, .seconds = table_.step_s, .working_bytes = table_.step_extra_bytes});
    free_after_last_use();
    return std::move(program_);
  }

 private:
  program::RankProgram& rank() { return program_.ranks.front(); }

  ValueId make(ValueKind kind, int32_t layer, int64_t bytes) {
    const ValueId id = static_cast<ValueId>(rank().values.size());
    rank().values.push_back({kind, layer, micro_batch_, bytes});
    newest_[{kind, layer, micro_batch_}] = id;
    return id;
  }

  // The value as it was made last: an activation that is recomputed has several lives.
  ValueId newest(ValueKind kind, int32_t layer) const {
    const auto found = newest_.find({kind, layer, micro_batch_});
    PENSTOCK_CHECK(found != newest_.end(), "a schedule uses layer ", layer, " before it is run");
    return found->second;
  }

  void emit(Instruction instruction) { rank().instructions.push_back(std::move(instruction)); }

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

  void add_forward(int32_t layer) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const ValueId input = newest(ValueKind::Activation, layer);
    const ValueId output = make(ValueKind::Activation, layer + 1, cost.output_bytes);
    emit({.op = Op::Forward,
          .layer = layer,
          .micro_batch = micro_batch_,
          .reads = {input},
          .makes = {output},
          .seconds = cost.forward_s,
          .working_bytes = cost.output_bytes + cost.forward_extra_bytes});
  }

  void add_keeping_forward(int32_t layer, int32_t way, bool without_output) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const KeepCost& keep = cost.ways[static_cast<size_t>(way)];
    const int64_t state_bytes = keep.saved_bytes - cost.output_bytes;
    Instruction forward{.op = Op::Forward,
                        .layer = layer,
                        .micro_batch = micro_batch_,
                        .keep = way,
                        .reads = {newest(ValueKind::Activation, layer)},
                        .seconds = keep.forward_s,
                        .working_bytes = keep.saved_bytes + keep.forward_extra_bytes};
    Kept kept{way, kNoOutput};
    if (without_output) {
      forward.seconds = keep.recompute_s;
      forward.working_bytes = state_bytes + keep.recompute_extra_bytes;
    } else {
      kept.output = make(ValueKind::Activation, layer + 1, cost.output_bytes);
      forward.makes.push_back(kept.output);
    }
    forward.makes.push_back(make(ValueKind::Saved, layer, state_bytes));
    kept_[{layer, micro_batch_}] = kept;
    emit(std::move(forward));
  }

  void add_loss() {
    const int32_t last = program_.loss_index();
    const int64_t bytes = table_.layers.back().output_bytes;
    const ValueId input = newest(ValueKind::Activation, last);
    const ValueId targets = newest(ValueKind::Targets, last);
    emit({.op = Op::Loss,
          .micro_batch = micro_batch_,
          .reads = {input, targets},
          .makes = {make(ValueKind::Gradient, last, bytes)},
          .seconds = table_.loss.seconds,
          .working_bytes = bytes + table_.loss.extra_bytes});
  }

  void add_backward(int32_t layer) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const auto kept = kept_.find({layer, micro_batch_});
    PENSTOCK_CHECK(
        kept != kept_.end(), "a schedule goes back over layer ", layer, " before it was kept");
    const auto [way, output] = kept->second;
    const KeepCost& keep = cost.ways[static_cast<size_t>(way)];
    Instruction backward{.op = Op::Backward,
                         .layer = layer,
                         .micro_batch = micro_batch_,
                         .reads = {newest(ValueKind::Activation, layer),
                                   newest(ValueKind::Saved, layer),
                                   newest(ValueKind::Gradient, layer + 1)},
                         .seconds = keep.backward_s,
                         .working_bytes = cost.input_bytes + keep.backward_extra_bytes};
    if (keep.needs_output) {
      backward.reads.push_back(output);
    }
    // The model's own input has no gradient that anybody reads.
    if (layer > 0) {
      backward.makes.push_back(make(ValueKind::Gradient, layer, cost.input_bytes));
    }
    emit(std::move(backward));
  }

  void free_after_last_use() {
    std::vector<int64_t> last_use(rank().values.size(), -1);
    auto& instructions = rank().instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      for (const auto* list : {&instructions[i].reads, &instructions[i].makes}) {
        for (const ValueId id : *list) {
          last_use[static_cast<size_t>(id)] = static_cast<int64_t>(i);
        }
      }
    }
    for (size_t id = 0; id < last_use.size(); ++id) {
      PENSTOCK_CHECK(last_use[id] >= 0, "a schedule leaves an input unused");
      instructions[static_cast<size_t>(last_use[id])].frees.push_back(static_cast<ValueId>(id));
    }
  }

  static constexpr ValueId kNoOutput = -1;
  struct Kept {
    int32_t way = 0;
    ValueId output = kNoOutput;  // made by the same forward
  };

  const CostTable& table_;
  program::Program program_;
  int32_t micro_batch_ = 0;
  std::map<std::tuple<ValueKind, int32_t, int32_t>, ValueId> newest_;
  std::map<std::pair<int32_t, int32_t>, Kept> kept_;  // by layer and micro-batch
};

}  // namespace

program::Program lower(const CostTable& table,
                       const Operations& operations,
                       int32_t micro_batches,
                       int64_t limit_bytes) {
  PENSTOCK_CHECK(!table.layers.empty(), "a cost table without layers");
  return Lowering(table, micro_batches, limit_bytes).run(operations);
}

}  // namespace penstock::plan
