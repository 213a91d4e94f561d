#include "penstock/plan/operations.h"

#include <algorithm>
#include <cmath>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

int32_t layer_count(const CostTable& table) {
  return static_cast<int32_t>(table.layers.size());
}

void add_backwards(Operations& operations, int32_t first, int32_t end) {
  for (int32_t layer = end - 1; layer >= first; --layer) {
    operations.push_back({OperationKind::Backward, layer});
  }
}

void add_forwards(Operations& operations, int32_t first, int32_t end) {
  for (int32_t layer = first; layer < end; ++layer) {
    operations.push_back({OperationKind::ForwardAll, layer});
  }
}

}  // namespace

std::string_view operation_name(OperationKind kind) {
  switch (kind) {
    case OperationKind::ForwardAll:
      return "forward_all";
    case OperationKind::ForwardKeepInput:
      return "forward_keep_input";
    case OperationKind::ForwardDrop:
      return "forward_drop";
    case OperationKind::Loss:
      return "loss";
    case OperationKind::Backward:
      return "backward";
  }
  throw InternalError("no such operation");
}

Operations keep_everything(const CostTable& table) {
  const int32_t layers = layer_count(table);
  Operations operations;
  add_forwards(operations, 0, layers);
  operations.push_back({OperationKind::Loss, layers});
  add_backwards(operations, 0, layers);
  return operations;
}

Operations recompute_everything(const CostTable& table) {
  const int32_t layers = layer_count(table);
  Operations operations;
  for (int32_t layer = 0; layer < layers; ++layer) {
    operations.push_back({OperationKind::ForwardKeepInput, layer});
  }
  operations.push_back({OperationKind::Loss, layers});
  for (int32_t layer = layers - 1; layer >= 0; --layer) {
    operations.push_back({OperationKind::ForwardAll, layer});
    operations.push_back({OperationKind::Backward, layer});
  }
  return operations;
}

Operations recompute_segments(const CostTable& table) {
  const int32_t layers = layer_count(table);
  const int32_t segments =
      std::max<int32_t>(1, static_cast<int32_t>(std::lround(std::sqrt(layers))));
  const auto begin_of = [&](int32_t segment) { return layers * segment / segments; };
  Operations operations;
  for (int32_t segment = 0; segment + 1 < segments; ++segment) {
    operations.push_back({OperationKind::ForwardKeepInput, begin_of(segment)});
    for (int32_t layer = begin_of(segment) + 1; layer < begin_of(segment + 1); ++layer) {
      operations.push_back({OperationKind::ForwardDrop, layer});
    }
  }
  add_forwards(operations, begin_of(segments - 1), layers);
  operations.push_back({OperationKind::Loss, layers});
  add_backwards(operations, begin_of(segments - 1), layers);
  for (int32_t segment = segments - 2; segment >= 0; --segment) {
    add_forwards(operations, begin_of(segment), begin_of(segment + 1));
    add_backwards(operations, begin_of(segment), begin_of(segment + 1));
  }
  return operations;
}

namespace {

double forward_seconds(const CostTable& table, const Operations& operations, size_t index) {
  const Operation& operation = operations[index];
  const SaveModeCost& keep =
      table.layers[static_cast<size_t>(operation.layer)].modes[static_cast<size_t>(operation.mode)];
  return leaves_output_out(table, operations, index) ? keep.recompute_s : keep.forward_s;
}

}  // namespace

bool leaves_output_out(const CostTable& table, const Operations& operations, size_t index) {
  const Operation& operation = operations[index];
  if (operation.kind != OperationKind::ForwardAll || index + 1 == operations.size()) {
    return false;
  }
  const LayerCost& layer = table.layers[static_cast<size_t>(operation.layer)];
  return operations[index + 1] == Operation{OperationKind::Backward, operation.layer} &&
         !layer.modes[static_cast<size_t>(operation.mode)].needs_output;
}

double seconds_of(const CostTable& table, const Operations& operations) {
  double sum = 0;
  std::vector<int32_t> modes(table.layers.size(), 0);
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    const size_t at = static_cast<size_t>(operation.layer);
    switch (operation.kind) {
      case OperationKind::ForwardAll:
        modes[at] = operation.mode;
        sum += forward_seconds(table, operations, i);
        break;
      case OperationKind::ForwardKeepInput:
      case OperationKind::ForwardDrop:
        sum += table.layers[at].forward_s;
        break;
      case OperationKind::Loss:
        sum += table.loss.seconds;
        break;
      case OperationKind::Backward:
        sum += table.layers[at].modes[static_cast<size_t>(modes[at])].backward_s;
        break;
    }
  }
  return sum;
}

int64_t recomputed_forwards(const CostTable& table, const Operations& operations) {
  const auto is_forward = [](const Operation& operation) {
    return operation.kind != OperationKind::Loss && operation.kind != OperationKind::Backward;
  };
  return std::count_if(operations.begin(), operations.end(), is_forward) - layer_count(table);
}

}  // namespace penstock::plan
